-- Transitions: the table of the core, the change of a message by a row, and what its counts and its record say.

local ROWS_BY_CAUSE = {} -- by state * 32 + trigger: the rows in the order of the table

function F.init_rows()
  for i = 1, #TABLE do
    local row = TABLE[i]
    local cause = (row[1] == NONE and NO_STATE or row[1]) * 32 + row[2]
    local rows = ROWS_BY_CAUSE[cause] or {}
    ROWS_BY_CAUSE[cause] = rows
    rows[#rows + 1] = {number = i - 1, guard = row[3], to = row[4]}
  end
end

local function holds(guard, M, delayed)
  if guard == GUARD.Always then
    return true
  elseif guard == GUARD.Delayed then
    return delayed
  elseif guard == GUARD.CancelRequested then
    return M.lease ~= nil and M.lease.cancel
  elseif guard == GUARD.NoCancelRequested then
    return not (M.lease and M.lease.cancel)
  elseif guard == GUARD.AttemptsLeft then
    return M.left > 0
  elseif guard == GUARD.AttemptsLeftAndDelayed then
    return M.left > 0 and delayed
  elseif guard == GUARD.ReleasesLeft then
    return M.releases < LIMIT.releases
  elseif guard == GUARD.LeaseExpired then
    return M.expired_serial ~= nil
  end
  error('a guard that this library does not know')
end

-- The first row that applies; nil if there is none.
function F.find_row(M, state, trigger, delayed)
  local rows = ROWS_BY_CAUSE[state * 32 + trigger] or {}
  for i = 1, #rows do
    if holds(rows[i].guard, M, delayed) then
      return rows[i]
    end
  end
end

function F.add_total(state, messages, bytes)
  local H = S.H
  H['m' .. state] = H['m' .. state] + messages
  H['b' .. state] = H['b' .. state] + bytes
end

-- Where a message is in the indexes.
local function places(M)
  local at = {state = M.state}
  if M.state == STATE.Pending then
    at.pending, at.minute = M.priority, floor(M.visible_at / LIMIT.minute)
    at.due = M.ttl_at
  elseif M.state == STATE.Invisible then
    at.due = M.ttl_at and math.min(M.ttl_at, M.visible_at) or M.visible_at
  elseif M.state == STATE.Running then
    local L = M.lease
    at.due, at.session, at.confirmed, at.cancel = L.expires, L.session, L.confirmed, L.cancel
  else
    at.gone = M.delete_at
  end
  return at
end

-- Follows a message from a state and priority in the indexes that one call changes again and again.
function F.follow(M, state, priority)
  if S.P.exclusive then
    F.follow_value(M, state, priority)
  end
  if S.shapes then
    F.follow_shapes(M, state, priority)
  end
end

-- Says that a message is about to change.
function F.touch(M)
  M.packed = nil
  if not M.was then
    M.was = M.new and {} or places(M)
    S.dirty[#S.dirty + 1] = M
  end
end

function F.places_after(M)
  return M.gone and {} or places(M)
end

-- Applies one row. change sets the other fields of the message. Returns the new state, or nil and a refusal.
function F.apply(M, trigger, delayed, change)
  local row = F.find_row(M, M.state, trigger, delayed)
  if not row or row.to == NONE then
    return nil, F.refuse(REFUSED.WRONG_STATE, M.state)
  end
  local session = M.lease and M.lease.session and F.session(M.lease.session)
  F.touch(M)
  local before = {state = M.state, lease = M.lease, attempt = M.max - M.left, visible_at = M.visible_at}
  local priority, to, now = M.priority, row.to, S.now
  F.leave_session(M, session)
  F.add_total(M.state, -1, -M.bytes)
  if change then
    change(M, to)
  end
  M.state, M.version = to, M.version + 1
  if to ~= STATE.Running then
    M.lease = nil
  end
  if to == STATE.Pending then
    M.visible_at = now
  end
  local kept = S.P.kept[to]
  if kept then
    M.ended_at, M.delete_at = now, now + kept
  end
  F.add_total(to, 1, M.bytes)
  F.follow(M, before.state, priority)
  F.enter_session(M, session)
  if session then
    session.rested = true
  end
  local has_moved_up = to == STATE.Pending and before.state == STATE.Pending and M.priority < priority
  if has_moved_up or F.is_before_others(M) then
    S.H.moved = now
  end
  F.record(M, before, row, trigger)
  return to
end

-- Puts a new message in, by the row that lets it in.
function F.insert(M, row)
  M.new = true
  F.touch(M)
  S.messages[M.seq] = M
  F.add_total(M.state, 1, M.bytes)
  F.follow(M)
  if F.is_before_others(M) then
    S.H.moved = S.now
  end
  F.record(M, nil, row, TRIGGER.Enqueue)
end

-- Removes a message by a row that leads to nothing. Returns true, or nil and a refusal.
function F.remove(M, trigger)
  local row = F.find_row(M, M.state, trigger, false)
  if not row or row.to ~= NONE then
    return nil, F.refuse(REFUSED.WRONG_STATE, M.state)
  end
  F.touch(M)
  F.add_total(M.state, -1, -M.bytes)
  F.forget_id(M)
  F.detach(M)
  local before = {state = M.state, lease = M.lease, attempt = M.max - M.left, visible_at = M.visible_at}
  F.record(M, before, row, trigger)
  M.gone = true
  F.follow(M, before.state, M.priority)
  return true
end
