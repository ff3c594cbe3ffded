-- enq: enqueues messages, each once whatever is repeated. The order of checks is that of the promise to repeats: token, then
-- deleted, blocked, quota, validity.
--
-- keys: header, a key that never exists. args: 1 versions and time, 2 settings, then for each message: the request, its
-- static part, its body. Reply: the status, then each answer: the key of the message, its first state, whether it is a
-- repeat; or a refusal. O(log n) each.

local REQUEST = '<BBc8c16dddHddI4'
local HAS_TOKEN_TIME, HAS_OWN_PRIORITY, HAS_OWN_LEASE, HAS_OWN_TTL = 1, 2, 4, 8
local BEFORE_PRIORITY = 1 -- when a part that Rust found invalid is told: before the priority, or after it

local function first_answer(E)
  if E.has_token then
    if F.may_be_dropped(E.token_time) then
      return nil, F.refuse(REFUSED.TOKEN_EXPIRED)
    end
    local first = F.outlived(E.hash, E.token_time)
    if first then
      return first
    end
  end
  local M = F.by_id(E.hash)
  if M and S.H.deleted >= 0 then -- its messages are gone, whatever is still to be removed
    local time = F.token_time(M)
    M = E.has_token and time == E.token_time and F.is_tracked(M, time) and M or nil
  end
  if M then
    return {fingerprint = F.fingerprint(M), epoch = M.epoch, seq = M.seq, state = M.first_state}
  end
  if E.has_token and E.token_time > S.ahead + LIMIT.token_ahead then
    return nil, F.refuse(REFUSED.INVALID, INVALID_TOKEN_TIME)
  end
end

local function full(E)
  local H, P = S.H, S.P
  if H.m0 + H.m1 + H.m2 + H.m3 + H.m4 + H.m5 >= P.quota_messages then
    return F.refuse(REFUSED.FULL, FULL_MESSAGES)
  elseif H.b0 + H.b1 + H.b2 + H.b3 + H.b4 + H.b5 + E.bytes > P.quota_bytes then
    return F.refuse(REFUSED.FULL, FULL_BYTES)
  elseif E.has_token and not F.has_room(E.token_time) then
    return F.refuse(REFUSED.FULL, FULL_ANSWERS)
  end
end

local function enqueued(epoch, seq, state, again)
  return pack('<BI4dBB', 0, epoch, seq, state, again and 1 or 0)
end

local function enqueue(raw, static, body)
  local E, H, now = {}, S.H, S.now
  local flags, bad, priority, invisibility, attempts, lease, ttl
  flags, bad, E.fingerprint, E.hash, E.token_time, priority, invisibility, attempts, lease, ttl, E.bytes = parse(REQUEST, raw)
  E.has_token = F.has_flag(flags, HAS_TOKEN_TIME)
  local first, refused = first_answer(E)
  if refused then
    return refused
  elseif first and first.fingerprint ~= E.fingerprint then
    return F.refuse(REFUSED.TOKEN_REUSED)
  elseif first then
    return enqueued(first.epoch, first.seq, first.state, true)
  elseif H.deleted >= 0 then
    return F.refuse(REFUSED.DELETED)
  elseif F.has_flag(H.flags, ENQUEUE_BLOCKED) then
    return F.blocked(REFUSED.ENQUEUE_BLOCKED, 'enqueue_blocked')
  end
  refused = full(E)
  if refused then
    return refused
  elseif bad == BEFORE_PRIORITY then
    return F.refuse(REFUSED.INVALID)
  end
  if not F.has_flag(flags, HAS_OWN_PRIORITY) then
    priority = floor(now / 1000) + priority
  end
  if priority < -LIMIT.priority or priority > LIMIT.priority then
    return F.refuse(REFUSED.INVALID, INVALID_PRIORITY)
  elseif bad ~= 0 then
    return F.refuse(REFUSED.INVALID)
  end
  local row = F.find_row(nil, NO_STATE, TRIGGER.Enqueue, invisibility > 0)
  H.sequence = H.sequence + 1
  local M = {
    seq = H.sequence, epoch = H.epoch, s = static, b = body, bytes = E.bytes, priority = priority, max = attempts, left = attempts,
    enqueued_at = now, visible_at = now + invisibility, state = row.to, first_state = row.to, version = 1, releases = 0,
    ttl_at = F.has_flag(flags, HAS_OWN_TTL) and now + ttl or nil,
    lease_duration = F.has_flag(flags, HAS_OWN_LEASE) and lease or nil,
  }
  F.admit_values(M)
  F.insert(M, row)
  F.remember_id(E.hash, M.seq)
  if E.has_token then
    F.put_answer(E.token_time)
  end
  return enqueued(M.epoch, M.seq, M.state, false)
end

function F.enq(keys, args)
  local failed = F.open(keys, args)
  if failed then
    return failed
  end
  for i = 3, #args, 3 do
    F.answer(enqueue(args[i], args[i + 1], args[i + 2]))
  end
  return F.finish()
end
