-- ses: recalls what an earlier try of a session's call got, renews sessions, ends them. A heartbeat confirms at most
-- LIMIT.heartbeat_leases of the leases that its session has received; the next one goes on, and until then they keep their own ends.
--
-- keys: header, a key that never exists. args: 1 versions and time, 2 settings, then for each: the request, session, call,
-- the last call whose answer the session has. Reply: the status, then each answer: leases; or that there were none; or what
-- is left of the session and the leases whose messages should be canceled; or how many leases ended; or a refusal.
-- O((1 + leases) log n) each.

local SESSION_REQUEST = '<BBBI4dHB'
local RECALL, HEARTBEAT, END = 0, 1, 2
local SESSION_HAS_LEASE, SESSION_HAS_RECEIVED = 1, 2

local function check_alive(id)
  F.expire_session(id)
  local R = F.session(id)
  if R and R.ended ~= ALIVE then
    return F.refuse(REFUSED.SESSION_ENDED, R.ended)
  end
end

-- Confirms the leases of calls up to one: they end with their session, or after the longest run.
local function confirm(id, up_to)
  local R = F.session(id)
  if not R or not R.has_lease then
    return
  end
  local members, list = call('ZRANGE', S.tag .. 'u' .. id, 0, LIMIT.heartbeat_leases - 1), {}
  for i = 1, #members do
    local M = F.message(F.sequence_of(members[i]))
    local L = M and M.lease
    if L and L.session == id and not L.confirmed and L.call <= up_to then
      list[#list + 1] = M
    end
  end
  sort(list, function(a, b)
    if a.lease.call ~= b.lease.call then
      return a.lease.call < b.lease.call
    end
    return a.lease.serial < b.lease.serial
  end)
  for i = 1, #list do
    local M = list[i]
    F.catch_up(M)
    local L = M.lease
    if L and L.session == id then
      F.touch(M)
      L.confirmed, L.expires = true, L.since + S.P.max_run
      R.confirmed, R.changed, S.clocked = R.confirmed + 1, true, true
    end
  end
end

-- The leases of a call that still hold, in their order.
local function leases_of(D)
  local raw, leases = call('HGET', S.tag .. 'k' .. D.session, D.call) or '', {}
  for at = 1, #raw, MEMBER_BYTES do
    local M = F.whole_message(F.sequence_of(sub(raw, at, at + MEMBER_BYTES - 1)))
    local L = M and M.lease
    if L and L.session == D.session and L.call == D.call then
      F.catch_up(M)
      L = M.lease
      if L and L.session == D.session and L.call == D.call then
        leases[#leases + 1] =
          {M = M, seq = M.seq, serial = L.serial, attempt = M.max - M.left, expires_in = F.next_due(M) - S.now}
      end
    end
  end
  return leases
end

-- Registers a call. Returns the leases of an earlier try, if that got some; or nil and a refusal.
function F.replay(D)
  if D.bad_call ~= 0 then
    return nil, F.refuse(REFUSED.INVALID)
  end
  local id = D.session
  local refused = check_alive(id)
  if refused then
    return nil, refused
  end
  local R, is_answered = F.session(id), false
  if R then
    for i = 1, #R.answered do
      is_answered = is_answered or R.answered[i] == D.call
    end
    if D.call <= R.floor then
      return nil, F.refuse(REFUSED.SEQUENCE_TOO_OLD)
    end
    for i = 1, #R.bars do
      if R.bars[i].call == D.call and D.attempt < R.bars[i].attempt then
        return nil, F.refuse(REFUSED.TRY_BARRED)
      end
    end
  elseif S.H.sessions >= LIMIT.sessions then
    return nil, F.refuse(REFUSED.FULL, FULL_SESSIONS)
  end
  if D.session_lease and R and R.held > 0 then
    F.renew_session(id, D.session_lease)
  end
  if D.attempt > 1 then
    F.bar(F.session_for_change(id, D.session_lease), D.call, D.attempt)
  end
  if D.received then
    confirm(id, D.received)
  end
  return is_answered and leases_of(D) or nil
end

local function heartbeat(D)
  local id = D.session
  local refused = check_alive(id)
  if refused then
    return refused
  end
  local R = F.session(id)
  if not R then
    return F.refuse(REFUSED.SESSION_NOT_FOUND)
  elseif not R.has_lease then
    return F.refuse(REFUSED.INVALID, INVALID_SESSION)
  end
  local left = R.lease
  if R.held > 0 then
    F.renew_session(id, left)
  end
  if D.received then
    confirm(id, D.received)
  end
  F.flush()
  local members = call('ZRANGE', S.tag .. 'x' .. id, 0, LIMIT.cancels - 1)
  local parts = {pack('<BdH', 0, left, #members)}
  for i = 1, #members do
    local M = F.message(F.sequence_of(members[i]))
    parts[i + 1] = pack('<I4dI4I5', M.epoch, M.seq, M.lease.epoch, M.lease.serial)
  end
  return concat(parts)
end

local function end_session(D)
  if D.bad ~= 0 then
    return F.refuse(REFUSED.INVALID)
  end
  local id = D.session
  F.expire_session(id)
  local R = F.session(id)
  if not R or R.ended == ALIVE then
    R = F.session_for_change(id)
    R.ended, R.ended_at = D.ending, S.now
  end
  local held = F.held_by(R, R.ended == EXPIRED, D.max + 1)
  local count = 0
  for i = 1, #held do
    local M = F.message(held[i])
    if count < D.max and F.ends_with(M, R) then
      F.apply_timer(M)
      count = count + 1
    end
  end
  local left = R.ended == EXPIRED and R.confirmed or R.held
  return pack('<BdB', 0, count, left > 0 and MORE or COMPLETE)
end

local function session_call(args, i)
  local D = {session = args[i + 1], call = args[i + 2]}
  local kind, flags, lease
  kind, flags, D.bad, D.attempt, lease, D.max, D.ending = parse(SESSION_REQUEST, args[i])
  D.bad_call = D.bad
  D.session_lease = F.has_flag(flags, SESSION_HAS_LEASE) and lease or nil
  D.received = F.has_flag(flags, SESSION_HAS_RECEIVED) and args[i + 3] or nil
  if kind == RECALL then
    local again, refused = F.replay(D)
    F.flush()
    if refused then
      F.answer(refused)
    elseif again then
      F.leases_answer(again, COMPLETE, 0)
    else
      F.answer(pack('<BB', 0, NONE)) -- no try of this call got leases
    end
    return
  end
  local reply = kind == HEARTBEAT and heartbeat(D) or kind == END and end_session(D)
  F.flush()
  F.answer(reply)
end

function F.ses(keys, args)
  return F.each(keys, args, 4, session_call)
end
