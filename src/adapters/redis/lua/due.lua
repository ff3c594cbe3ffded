-- Timers: the end of a window, of a lease, of a session, of a TTL. A due row is applied by the next call on its message, by a
-- dequeue or by a sweep.

-- The next timer of a message and what it triggers: its own, or the end of its session if that is earlier.
function F.next_due(M)
  local state = M.state
  if state == STATE.Invisible then
    if M.ttl_at and M.ttl_at <= M.visible_at then
      return M.ttl_at, TRIGGER.TtlOver
    end
    return M.visible_at, TRIGGER.WindowOver
  elseif state == STATE.Pending then
    return M.ttl_at, TRIGGER.TtlOver
  elseif state == STATE.Running then
    local at, how = F.end_with_session(M)
    if not at or M.lease.expires <= at then
      return math.max(M.lease.expires, S.H.quiet_until), TRIGGER.LeaseOver
    elseif how == EXPIRED then
      return math.max(at, S.H.quiet_until), TRIGGER.LeaseOver
    end
    return at, how == CLOSED and TRIGGER.Release or TRIGGER.LeaseOver
  end
  return M.delete_at, TRIGGER.RetentionOver
end

local function is_terminal(state)
  return state >= STATE.Completed
end

local function give_back(M, to)
  if to == STATE.Pending and M.releases < LIMIT.releases then
    M.left, M.releases = M.left + 1, M.releases + 1
  end
end

function F.release(M)
  return F.apply(M, TRIGGER.Release, false, give_back)
end

local function note_expired(M)
  M.expired_epoch, M.expired_serial = M.lease.epoch, M.lease.serial
end

-- Ends a lease. The worker that held it may still complete the message.
function F.expire_lease(M)
  return F.apply(M, TRIGGER.LeaseOver, false, note_expired)
end

local function by_ttl(M)
  M.canceled_by, M.canceled_why = CANCELED.Ttl, nil
end

function F.apply_timer(M)
  local _, trigger = F.next_due(M)
  if M.lease and M.lease.session then
    F.expire_session(M.lease.session)
  end
  if trigger == TRIGGER.LeaseOver then
    F.expire_lease(M)
  elseif trigger == TRIGGER.Release then
    F.release(M)
  elseif trigger == TRIGGER.TtlOver then
    F.apply(M, trigger, false, by_ttl)
  else
    F.apply(M, trigger, false)
  end
end

-- Applies what is due of one message, except retention: at most three rows.
function F.catch_up(M)
  while not is_terminal(M.state) do
    local at = F.next_due(M)
    if not at or at > S.now then
      return
    end
    F.apply_timer(M)
  end
end

-- The due entries of a shard in the order of their times, while rows that are not written yet bring about others. An entry is
-- {time, sequence, session}; next_ gives the first, put adds one. most says how many are read at a time.
local function due_entries(most)
  local list, read, is_all, last = {}, 0, false, nil
  local function is_before(a, b)
    return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
  end
  local function put(entry)
    local place = #list + 1
    while place > 1 and is_before(entry, list[place - 1]) do
      place = place - 1
    end
    table.insert(list, place, entry)
  end
  local function read_more()
    local due = call('ZRANGEBYSCORE', S.keys.d, '-inf', S.now, 'WITHSCORES', 'LIMIT', read, most)
    for i = 1, #due, 2 do
      local id = #due[i] > MEMBER_BYTES and sub(due[i], MEMBER_BYTES + 1) or nil
      last = {tonumber(due[i + 1]), F.sequence_of(due[i]), id}
      put(last)
    end
    read, is_all = read + #due / 2, #due / 2 < most
  end
  local function next_()
    -- What was not read yet comes after the last entry that was.
    while not is_all and (not list[1] or (last and is_before(last, list[1]))) do
      read_more()
    end
    return table.remove(list, 1)
  end
  return next_, put
end

-- Applies up to most due rows of the shard in the order of their times, and none in a quiet time. Returns how many.
function F.catch_up_shard(most)
  local first = F.head_of('d')
  if not first or first > S.now or F.is_quiet() then
    return 0
  end
  local next_, put = due_entries(most)
  local count, held = 0, {}
  while count < most do
    local entry = next_()
    if not entry then
      break
    end
    local at, seq, id = entry[1], entry[2], entry[3]
    local M = F.message(seq)
    local R = id and F.session(id)
    local own = M and not is_terminal(M.state) and F.own_due(M)
    if M and (R and F.ends_with(M, R) or not R and own and own <= S.now) then
      F.apply_timer(M)
      count = count + 1
      own = not is_terminal(M.state) and F.own_due(M)
      if own and own <= S.now then
        put({own, seq}) -- what came back may have outlived its TTL
      end
    end
    if R then
      -- The next message of the session has its turn after those that are due earlier.
      local rest = held[id] or F.held_by(R, not (R.ended == CLOSED or R.ended == REPLACED), most + 1)
      held[id] = rest
      while rest[1] and not F.ends_with(F.message(rest[1]), R) do
        table.remove(rest, 1)
      end
      if rest[1] then
        put({at, rest[1], id})
      end
    end
  end
  return count
end

-- Whether a row is due, retention aside, as the indexes say.
function F.is_overdue()
  local first = F.head_of('d')
  return first and first <= S.now and not F.is_quiet()
end
