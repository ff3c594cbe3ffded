-- Transitions: the table of the core, the change of a message by a row, and what its counts and its record say.

local ROWS_BY_CAUSE = {} -- by state * 32 + trigger: the rows in the order of the table
local NOWHERE = {} -- where a message is that does not exist yet

-- Whether a guard holds; Always has no entry.
local HOLDS = {
  [GUARD.Delayed] = function(_, delayed)
    return delayed
  end,
  [GUARD.CancelRequested] = function(M)
    return M.lease ~= nil and M.lease.cancel
  end,
  [GUARD.NoCancelRequested] = function(M)
    return not (M.lease and M.lease.cancel)
  end,
  [GUARD.AttemptsLeft] = function(M)
    return M.left > 0
  end,
  [GUARD.AttemptsLeftAndDelayed] = function(M, delayed)
    return M.left > 0 and delayed
  end,
  [GUARD.ReleasesLeft] = function(M)
    return M.releases < LIMIT.releases
  end,
  [GUARD.LeaseExpired] = function(M)
    return M.expired_serial ~= nil
  end,
}

function F.init_rows()
  for i = 1, #TABLE do
    local row = TABLE[i]
    local cause, holds = (row[1] == NONE and NO_STATE or row[1]) * 32 + row[2], HOLDS[row[3]]
    if not holds and row[3] ~= GUARD.Always then
      error('a guard that this library does not know')
    end
    local rows = ROWS_BY_CAUSE[cause] or {}
    ROWS_BY_CAUSE[cause] = rows
    rows[#rows + 1] = {number = i - 1, holds = holds, to = row[4]}
  end
end

-- The first row that applies; nil if there is none.
function F.find_row(M, state, trigger, delayed)
  local rows = ROWS_BY_CAUSE[state * 32 + trigger]
  for i = 1, rows and #rows or 0 do
    local row = rows[i]
    if not row.holds or row.holds(M, delayed) then
      return row
    end
  end
end

-- The names of the totals of each state in the header.
local MESSAGES, BYTES = {}, {}
for state = 0, 5 do
  MESSAGES[state], BYTES[state] = 'm' .. state, 'b' .. state
end

function F.add_total(state, messages, bytes)
  local H, of_messages, of_bytes = S.H, MESSAGES[state], BYTES[state]
  H[of_messages], H[of_bytes] = H[of_messages] + messages, H[of_bytes] + bytes
end

-- Where a message is in the indexes: state, priority if it is pending, minute since when it is, timer, end of its retention;
-- session, and whether the lease is confirmed and its cancel requested.
function F.places_after(M)
  local state = M.state
  if M.gone then
    return nil
  elseif state == STATE.Pending then
    return state, M.priority, floor(M.visible_at / LIMIT.minute), M.ttl_at
  elseif state == STATE.Invisible then
    local ttl, visible = M.ttl_at, M.visible_at
    return state, nil, nil, ttl and ttl < visible and ttl or visible
  elseif state == STATE.Running then
    local L = M.lease
    return state, nil, nil, L.expires, nil, L.session, L.confirmed, L.cancel
  end
  return state, nil, nil, nil, M.delete_at
end

local function places(M)
  local state, pending, minute, due, gone, session, confirmed, cancel = F.places_after(M)
  return {
    state = state, pending = pending, minute = minute, due = due, gone = gone, session = session, confirmed = confirmed,
    cancel = cancel,
  }
end

-- The stored timer of a message, as the index of timers will have it.
function F.own_due(M)
  local _, _, _, due = F.places_after(M)
  return due
end

-- Follows a message from a state and priority in the indexes that one call changes again and again.
function F.follow(M, state, priority)
  if S.P.exclusive then
    F.follow_value(M, state, priority)
  end
  if S.shapes then
    F.follow_shapes(M, state, priority)
  end
  M.metadata_before = nil
end

-- Says that a message is about to change.
function F.touch(M)
  M.packed = nil
  if not M.was then
    M.was = M.new and NOWHERE or places(M)
    local dirty = S.dirty
    if dirty then
      dirty[#dirty + 1] = M
    else
      S.dirty = {M}
    end
  end
end

-- Applies one row. change sets the other fields of the message; it gets the message, the new state and `with`. Returns the new
-- state, or nil and a refusal.
function F.apply(M, trigger, delayed, change, with)
  local from, L, P = M.state, M.lease, S.P
  local row = F.find_row(M, from, trigger, delayed)
  if not row or row.to == NONE then
    return nil, F.refuse(REFUSED.WRONG_STATE, from)
  end
  local session = L and L.session and F.session(L.session)
  F.touch(M)
  local attempt, visible_at, priority, to, now = M.max - M.left, M.visible_at, M.priority, row.to, S.now
  if session then
    F.leave_session(M, session)
  end
  F.add_total(from, -1, -M.bytes)
  if change then
    change(M, to, with)
  end
  M.state, M.version = to, M.version + 1
  if to ~= STATE.Running then
    M.lease = nil
  end
  if to == STATE.Pending and trigger ~= TRIGGER.Update then
    M.visible_at = now
  end
  if M.first_leased_at then
    M.ttl_at = nil -- it is for a message that nobody has taken
  end
  local kept = P.kept[to]
  if kept then
    M.ended_at, M.delete_at = now, now + kept
  end
  F.add_total(to, 1, M.bytes)
  if P.exclusive or S.shapes then
    F.follow(M, from, priority)
  end
  if session then
    F.enter_session(M, session)
    session.rested = true
  end
  local has_moved_up = to == STATE.Pending and from == STATE.Pending and M.priority < priority
  if has_moved_up or P.exclusive and F.is_before_others(M) then
    S.H.moved = now
  end
  F.record(M, row, trigger, from, L, attempt, visible_at)
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
  F.record(M, row, TRIGGER.Enqueue)
end

-- Removes a message by a row that leads to nothing. Returns true, or nil and a refusal.
function F.remove(M, trigger)
  local from = M.state
  local row = F.find_row(M, from, trigger, false)
  if not row or row.to ~= NONE then
    return nil, F.refuse(REFUSED.WRONG_STATE, from)
  end
  F.touch(M)
  F.add_total(from, -1, -M.bytes)
  F.forget_id(M)
  F.detach(M)
  F.record(M, row, trigger, from, M.lease, M.max - M.left, M.visible_at)
  M.gone = true
  F.follow(M, from, M.priority)
  return true
end
