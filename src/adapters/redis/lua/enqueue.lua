-- enq: enqueues messages, each once whatever is repeated. The order of checks is that of the promise to repeats: token, then
-- deleted, blocked, quota, validity.
--
-- keys: header, a key that never exists. args: 1 versions and time, 2 settings, then for each message: the request, its
-- static part, its body. Reply: the status, then each answer: the key of the message, its state, whether it is a repeat; or a
-- refusal. O(log n) each.

local REQUEST = '<BBc8c16dddHddI4'
local HAS_TOKEN_TIME, HAS_OWN_PRIORITY, HAS_OWN_LEASE, HAS_OWN_TTL, HAS_VISIBLE_AT = 1, 2, 4, 8, 16
local BEFORE_PRIORITY = 1 -- when a part that Rust found invalid is told: before the priority, or after it

-- Whether a message is over and gives its id to a new one. A repeat of its own enqueue gets no new message: that has the same
-- time, or without one the same content within a minute.
local function frees_id(M, token_time, fingerprint)
  F.catch_up(M)
  if not F.is_over(M.state) then
    return false
  elseif token_time then
    return F.token_time(M) ~= token_time
  end
  return F.fingerprint(M) ~= fingerprint or S.now >= M.enqueued_at + LIMIT.reused_id_repeated
end

-- The answer to the repeat of an enqueue, if there was one of the id; or nil and a refusal. It has the present state of the
-- message, or the first one after the message is gone. token_time: of its token, if it has one. If a message is over and gives
-- its id to a new one, that is the third result.
local function first_answer(hash, token_time, fingerprint)
  if token_time then
    if F.may_be_dropped(token_time) then
      return nil, F.refuse(REFUSED.TOKEN_EXPIRED)
    end
    local first = F.outlived(hash, token_time)
    if first then
      return first
    end
  end
  local M = F.by_id(hash)
  if M and S.H.deleted >= 0 then -- its messages are gone, whatever is still to be removed
    local time = F.token_time(M)
    M = token_time and time == token_time and F.is_tracked(M, time) and M or nil
  end
  local over = M and S.H.deleted < 0 and S.P.reuses_ids and frees_id(M, token_time, fingerprint) and M or nil
  if M and not over then
    local message = S.H.deleted < 0 and M or nil
    return {fingerprint = F.fingerprint(M), epoch = M.epoch, seq = M.seq, state = M.first_state, message = message}
  end
  if token_time and token_time > S.ahead + LIMIT.token_ahead then
    return nil, F.refuse(REFUSED.INVALID, INVALID_TOKEN_TIME)
  end
  return nil, nil, over
end

-- The state for the repeat of an enqueue.
local function state_of(first)
  local M = first.message
  if not M then
    return first.state
  end
  F.catch_up(M)
  return M.state
end

-- Whether there is no room for a message, in place of one that is over.
local function full(bytes, token_time, over)
  local H, P = S.H, S.P
  if not S.all_messages then
    S.all_messages = H.m0 + H.m1 + H.m2 + H.m3 + H.m4 + H.m5
    S.all_bytes = H.b0 + H.b1 + H.b2 + H.b3 + H.b4 + H.b5
  end
  if S.all_messages - (over and 1 or 0) >= P.quota_messages then
    return F.refuse(REFUSED.FULL, FULL_MESSAGES)
  elseif S.all_bytes - (over and over.bytes or 0) + bytes > P.quota_bytes then
    return F.refuse(REFUSED.FULL, FULL_BYTES)
  elseif token_time and not F.has_room(token_time) then
    return F.refuse(REFUSED.FULL, FULL_ANSWERS)
  end
end

local function enqueued(epoch, seq, state, again)
  return pack('<BI4dBB', 0, epoch, seq, state, again and 1 or 0)
end

local function enqueue(raw, static, body)
  local H, now = S.H, S.now
  local flags, bad, fingerprint, hash, token_time, priority, invisibility, attempts, lease, ttl, bytes = parse(REQUEST, raw)
  if flags % 2 < HAS_TOKEN_TIME then
    token_time = nil
  end
  local first, refused, over = first_answer(hash, token_time, fingerprint)
  if refused then
    return refused
  elseif first and first.fingerprint ~= fingerprint then
    return F.refuse(REFUSED.TOKEN_REUSED)
  elseif first then
    return enqueued(first.epoch, first.seq, state_of(first), true)
  elseif H.deleted >= 0 then
    return F.refuse(REFUSED.DELETED)
  elseif H.flags % 2 >= ENQUEUE_BLOCKED then
    return F.blocked(REFUSED.ENQUEUE_BLOCKED, 'enqueue_blocked')
  end
  refused = full(bytes, token_time, over)
  if refused then
    return refused
  elseif bad == BEFORE_PRIORITY then
    return F.refuse(REFUSED.INVALID)
  end
  local is_time = flags % 32 >= HAS_VISIBLE_AT
  if is_time then -- the past means at once
    invisibility = math.max(invisibility - now, 0)
  end
  if flags % 4 < HAS_OWN_PRIORITY then
    -- A longer invisibility was found invalid, and is refused below.
    priority = floor((now + math.min(invisibility, LIMIT.invisibility)) / 1000) + priority
  end
  if priority < -LIMIT.priority or priority > LIMIT.priority then
    return F.refuse(REFUSED.INVALID, INVALID_PRIORITY)
  elseif bad ~= 0 then
    return F.refuse(REFUSED.INVALID)
  end
  if is_time and invisibility > LIMIT.invisibility then
    return F.refuse(REFUSED.INVALID, INVALID_INVISIBILITY)
  end
  if over then
    F.remove(over, TRIGGER.RetentionOver)
    S.all_messages, S.all_bytes = S.all_messages - 1, S.all_bytes - over.bytes
  end
  local row = F.find_row(nil, NO_STATE, TRIGGER.Enqueue, invisibility > 0)
  H.sequence = H.sequence + 1
  local visible_at = now + invisibility
  local M = {
    seq = H.sequence, epoch = H.epoch, s = static, b = body, bytes = bytes, priority = priority, max = attempts, left = attempts,
    enqueued_at = now, visible_at = visible_at, state = row.to, first_state = row.to, version = 1, releases = 0,
    ttl_at = flags % 16 >= HAS_OWN_TTL and visible_at + ttl or nil, lease_duration = flags % 8 >= HAS_OWN_LEASE and lease or nil,
    key_set = S.P.key_set, counted = 0,
  }
  if M.key_set ~= 0 then
    F.admit_values(M)
  end
  F.insert(M, row)
  S.all_messages, S.all_bytes = S.all_messages + 1, S.all_bytes + bytes
  F.remember_id(hash, M.seq)
  if token_time then
    F.put_answer(token_time)
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
