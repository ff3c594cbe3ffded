-- Sessions: the hash s with a record of each, the sorted sets u<id> and f<id> with the sequences of its unconfirmed and
-- confirmed leases, x<id> with those whose cancel was requested, and the hash k<id> with the leases of its last calls.
--
-- A session has one entry in d, the end of its leases with the first of them, and one in sg, the time when it is forgotten.
-- Ids are 32 hex digits and calls 16, so that they are ordered as text.

local SESSION_FIXED = '<BddBdddBB'
local NO_CALL = '0000000000000000'

-- The record of a session; nil if the shard does not know it. The first reading of a session counts its leases, so it comes
-- before any change of them.
function F.session(id)
  S.sessions = S.sessions or {}
  local R = S.sessions[id]
  if R == nil then
    local raw = call('HGET', S.tag .. 's', id)
    R = raw and F.unpack_session(id, raw) or false
    if R then
      R.confirmed = call('ZCARD', S.tag .. 'f' .. id)
      R.held = R.confirmed + call('ZCARD', S.tag .. 'u' .. id)
    end
    S.sessions[id] = R
  end
  return R or nil
end

function F.unpack_session(id, raw)
  local R = {id = id, answered = {}, bars = {}}
  local answered, bars, at
  R.has_lease, R.lease, R.expires, R.ended, R.ended_at, R.idle_since, R.due_first, answered, bars, at = parse(SESSION_FIXED, raw)
  R.floor, at = sub(raw, at, at + 15), at + 16
  for i = 1, answered do
    R.answered[i], at = sub(raw, at, at + 15), at + 16
  end
  for i = 1, bars do
    local barred
    barred = {call = sub(raw, at, at + 15)}
    barred.attempt, at = parse('<I4', raw, at + 16)
    R.bars[i] = barred
  end
  R.has_lease = R.has_lease == 1
  return R
end

local function pack_session(R)
  local parts = {
    pack(SESSION_FIXED, R.has_lease and 1 or 0, R.lease, R.expires, R.ended, R.ended_at, R.idle_since, R.due_first, #R.answered,
      #R.bars),
    R.floor, concat(R.answered),
  }
  for i = 1, #R.bars do
    parts[#parts + 1] = R.bars[i].call .. pack('<I4', R.bars[i].attempt)
  end
  return concat(parts)
end

-- The record of a session, for a change; a new one with this lease if the shard does not know it.
function F.session_for_change(id, lease)
  local R = F.session(id)
  if not R then
    R = {
      id = id, has_lease = lease ~= nil, lease = lease or 0, expires = lease and S.now + lease or -1, ended = ALIVE, ended_at = 0,
      idle_since = S.now, due_first = -1, floor = NO_CALL, answered = {}, bars = {}, held = 0, confirmed = 0,
    }
    S.sessions[id] = R
    S.H.sessions = S.H.sessions + 1
  end
  R.changed = true
  S.clocked = true
  return R
end

function F.leave_session(M, R)
  if R and M.lease then
    R.held = R.held - 1
    R.confirmed = R.confirmed - (M.lease.confirmed and 1 or 0)
  end
end

function F.enter_session(M, R)
  if R and M.lease then
    R.held = R.held + 1
    R.confirmed = R.confirmed + (M.lease.confirmed and 1 or 0)
  end
end

-- When and how a running message ends with its session; nil if it does not.
function F.end_with_session(M)
  local L = M.lease
  local R = L and L.session and F.session(L.session)
  if not R then
    return nil
  elseif R.ended == CLOSED or R.ended == REPLACED then
    return R.ended_at, R.ended
  elseif not L.confirmed then
    return nil
  elseif R.ended == EXPIRED then
    return R.ended_at, EXPIRED
  elseif R.expires >= 0 then
    return R.expires, EXPIRED
  end
end

-- Ends a session that was silent for too long while it held confirmed leases.
function F.expire_session(id)
  local R = F.session(id)
  if R and R.ended == ALIVE and R.expires >= 0 and R.expires <= S.now and R.confirmed > 0 and not F.is_quiet() then
    F.session_for_change(id)
    R.ended, R.ended_at = EXPIRED, R.expires
  end
end

function F.renew_session(id, lease)
  local R = F.session_for_change(id, lease)
  R.has_lease, R.lease, R.expires, R.idle_since = lease ~= nil, lease or 0, lease and S.now + lease or -1, S.now
end

local function forget_up_to(R, number)
  R.floor = number > R.floor and number or R.floor
  local answered, bars, gone = {}, {}, {'HDEL', S.tag .. 'k' .. R.id}
  for i = 1, #R.answered do
    if R.answered[i] > number then
      answered[#answered + 1] = R.answered[i]
    else
      gone[#gone + 1] = R.answered[i]
    end
  end
  for i = 1, #R.bars do
    if R.bars[i].call > number then
      bars[#bars + 1] = R.bars[i]
    end
  end
  R.answered, R.bars = answered, bars
  if #gone > 2 then
    F.write(spread(gone))
  end
end

-- Notes which leases the calls of a session got. calls: lists of leases, each with its call.
function F.note_answers(R, calls)
  local answered, noted = R.answered, {'HSET', S.tag .. 'k' .. R.id}
  for i = 1, #calls do
    local leases, members = calls[i].leases, {}
    for j = 1, #leases do
      members[j] = F.member(leases[j].seq)
    end
    local count = #noted
    noted[count + 1], noted[count + 2] = calls[i].call, concat(members)
    answered[#answered + 1] = calls[i].call
    R.held = R.held + #leases
  end
  sort(answered)
  F.write(spread(noted))
  if #answered > LIMIT.session_calls then
    forget_up_to(R, answered[#answered - LIMIT.session_calls])
  end
end

-- Refuses lower attempts of a call from now on.
function F.bar(R, number, attempt)
  for i = 1, #R.bars do
    if R.bars[i].call == number then
      R.bars[i].attempt = math.max(attempt, R.bars[i].attempt)
      return
    end
  end
  R.bars[#R.bars + 1] = {call = number, attempt = attempt}
  sort(R.bars, function(a, b) return a.call < b.call end)
  if #R.bars > LIMIT.session_calls then
    forget_up_to(R, R.bars[1].call)
  end
end

-- The sequences that a session holds, lowest first; only confirmed ones, or all.
function F.held_by(R, only_confirmed, most)
  local tag, list = S.tag, {}
  for _, name in ipairs({'f', only_confirmed and '' or 'u'}) do
    if name ~= '' then
      local members = call('ZRANGE', tag .. name .. R.id, 0, most - 1)
      for i = 1, #members do
        list[#list + 1] = F.sequence_of(members[i])
      end
    end
  end
  if not only_confirmed then
    sort(list)
  end
  return list
end

-- Whether a message is still held by a session, and ends with it.
function F.ends_with(M, R)
  local L = M and M.lease
  return L and L.session == R.id and (L.confirmed or R.ended == CLOSED or R.ended == REPLACED)
end

-- Writes the records and timers of the sessions that changed. Comes after the leases were written.
function F.flush_sessions()
  local tag = S.tag
  for id, R in pairs(S.sessions) do
    if R and (R.changed or R.rested) then
      F.begin()
      if R.rested and R.held == 0 then
        R.idle_since = S.now
      end
      local first, at = -1, nil
      if R.ended == CLOSED or R.ended == REPLACED then
        first, at = F.held_by(R, false, 1)[1] or -1, R.ended_at
      else
        at = R.ended == EXPIRED and R.ended_at or R.expires
        if at >= 0 then -- a session without a lease of its own never ends by silence
          first = F.held_by(R, true, 1)[1] or -1
        end
      end
      S.heads.d, S.heads.sg = nil, nil
      if R.due_first >= 0 and R.due_first ~= first then
        call('ZREM', tag .. 'd', F.member(R.due_first) .. id)
      end
      R.due_first = first
      if first >= 0 then
        call('ZADD', tag .. 'd', at, F.member(first) .. id)
      end
      if R.held == 0 then
        call('ZADD', tag .. 'sg', R.idle_since + LIMIT.session_kept, id)
      else
        call('ZREM', tag .. 'sg', id)
      end
      call('HSET', tag .. 's', id, pack_session(R))
      R.changed, R.rested = false, false
    end
  end
end

-- Forgets a session, which holds no leases.
function F.forget_session(id)
  local R = F.session(id)
  local tag = S.tag
  F.write('HDEL', tag .. 's', id)
  F.write('ZREM', tag .. 'sg', id)
  S.heads.d, S.heads.sg = nil, nil -- nobody reads them again before it is written
  F.write('UNLINK', tag .. 'k' .. id, tag .. 'u' .. id, tag .. 'f' .. id, tag .. 'x' .. id)
  if R and R.due_first >= 0 then
    F.write('ZREM', tag .. 'd', F.member(R.due_first) .. id)
  end
  S.sessions[id] = false
  S.H.sessions = S.H.sessions - 1
  S.clocked, S.changed = true, true
end
