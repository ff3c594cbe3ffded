-- msg: cancels, updates, redrives or discards single messages. upd: the same for updates that bring a payload or metadata,
-- which Redis refuses when it has no memory left.
--
-- keys: header, a key that never exists. args: 1 versions and time, 2 settings, then for each: the request, the message, the
-- reason of a cancel or the token of an update; of an update also the payload, the metadata, and the hash of the exclusivity
-- value that these have. Reply: the status, then each answer: the state and version of the message, or how many changed, or a
-- refusal. O(log n) each.

local MESSAGE_REQUEST, ARGUMENTS = '<BHBdddc8I4', 6
local CANCEL_MESSAGE, UPDATE, REDRIVE, DISCARD = 0, 1, 2, 3
local HAS_PRIORITY, HAS_VISIBLE_AT, HAS_INVISIBILITY, ONLY_IF_SOONER, HAS_VERSION, HAS_TOKEN, HAS_PAYLOAD, NEW_METADATA =
  1, 2, 4, 8, 16, 32, 64, 128

local function settlement(M)
  return pack('<BBd', 0, M.state, M.version)
end

-- Cancels a message that is not over, or asks its worker to. Returns a refusal if it is over otherwise.
function F.cancel(M, reason)
  local is_asked = M.lease and M.lease.cancel
  if is_asked or M.state == STATE.Canceled then
    return nil
  end
  local _, refused = F.apply(M, TRIGGER.CancelMessage, false, function(changed)
    changed.canceled_by, changed.canceled_why = CANCELED.Request, reason
    local L = changed.lease
    if L then
      L.cancel = true
      S.cancels = S.cancels or {}
      S.cancels[#S.cancels + 1] = pack('<I4d', M.epoch, M.seq)
    end
  end)
  return refused
end

-- Why a waiting message may not get this payload and these metadata; nil if it may.
local function content_refused(M, U)
  if U.metadata and S.P.exclusive and U.value ~= F.routing_hash(M) then
    return F.refuse(REFUSED.INVALID, INVALID_EXCLUSIVITY_VALUE)
  end
  local H = S.H
  local added = U.payload and U.bytes - M.bytes or 0
  if added > 0 and H.b0 + H.b1 + H.b2 + H.b3 + H.b4 + H.b5 + added > S.P.quota_bytes then
    return F.refuse(REFUSED.FULL, FULL_BYTES)
  end
end

local function change(M, U)
  local now = S.now
  if U.expected and U.expected ~= M.version then
    return nil, F.refuse(REFUSED.VERSION, M.version)
  elseif U.bad ~= 0 then
    return nil, F.refuse(REFUSED.INVALID)
  end
  local asked = U.visible_at or U.invisibility and now + U.invisibility
  if asked and asked > now + LIMIT.invisibility then
    return nil, F.refuse(REFUSED.INVALID, INVALID_INVISIBILITY)
  end
  local visible_at = asked or M.visible_at
  local not_sooner = math.max(visible_at, now) >= math.max(M.visible_at, now)
  local may_wait = M.state == STATE.Invisible or M.state == STATE.Pending
  if may_wait and U.only_if_sooner and asked and not_sooner then
    return true
  end
  local no_content = may_wait and content_refused(M, U)
  if no_content then
    return nil, no_content
  end
  local new_state, refused = F.apply(M, TRIGGER.Update, visible_at > now, function(changed, to)
    changed.priority = U.priority or changed.priority
    if U.payload then
      changed.b, changed.bytes, changed.has_new_body = U.payload, U.bytes, true
    end
    if U.metadata then
      F.replace_metadata(changed, U.metadata)
    end
    if changed.ttl_at then -- what is left of it stays
      local left = math.max(changed.ttl_at - math.max(changed.visible_at, now), 0)
      changed.ttl_at = math.max(visible_at, now) + left
    end
    if to ~= STATE.Pending then
      changed.visible_at = visible_at
    elseif changed.state ~= STATE.Pending then -- a pending one has been ready since its own time
      changed.visible_at = now
    end
  end)
  if refused then
    return nil, refused
  end
  if U.metadata and new_state == STATE.Pending then
    S.H.moved = now -- a walk that has passed it may look for what it has become
  end
  F.catch_up(M)
  return true
end

local function update(M, U, token)
  if not U.has_token then
    local _, refused = change(M, U)
    return refused or settlement(M)
  end
  local updates = M.updates or {}
  for i = 1, #updates do
    if updates[i].text == token then
      if updates[i].fingerprint ~= U.fingerprint then
        return F.refuse(REFUSED.TOKEN_REUSED)
      end
      return pack('<BBd', 0, updates[i].state, updates[i].version)
    end
  end
  local _, refused = change(M, U)
  if refused then
    return refused
  end
  F.touch(M)
  if #updates == LIMIT.updates then
    table.remove(updates, 1)
  end
  updates[#updates + 1] = {text = token, fingerprint = U.fingerprint, state = M.state, version = M.version}
  M.updates = updates
  return settlement(M)
end

local function renew_attempts(M)
  M.left = M.max
end

-- Gives an errored message its attempts back. Returns its state, or nil and a refusal.
function F.redrive(M)
  return F.apply(M, TRIGGER.Redrive, false, renew_attempts)
end

local function message_call(raw, ref, reason, payload, metadata, value)
  local U, kind, flags, priority, visible_at, number = {}, nil, nil, nil, nil, nil
  kind, flags, U.bad, priority, visible_at, number, U.fingerprint, U.bytes = parse(MESSAGE_REQUEST, raw)
  local M = F.find_ref(ref)
  if not M then
    return F.refuse(REFUSED.NOT_FOUND)
  end
  F.catch_up(M)
  if kind == CANCEL_MESSAGE then
    return F.cancel(M, reason) or settlement(M)
  elseif kind == REDRIVE then
    local _, refused = F.redrive(M)
    return refused or settlement(M)
  elseif kind == DISCARD then
    local _, refused = F.remove(M, TRIGGER.Discard)
    return refused or pack('<Bd', 0, 1)
  end
  U.priority = F.has_flag(flags, HAS_PRIORITY) and priority or nil
  U.visible_at = F.has_flag(flags, HAS_VISIBLE_AT) and visible_at or nil
  U.invisibility = F.has_flag(flags, HAS_INVISIBILITY) and visible_at or nil
  U.expected = F.has_flag(flags, HAS_VERSION) and number or nil
  U.only_if_sooner, U.has_token = F.has_flag(flags, ONLY_IF_SOONER), F.has_flag(flags, HAS_TOKEN)
  U.payload = F.has_flag(flags, HAS_PAYLOAD) and payload or nil
  U.metadata, U.value = F.has_flag(flags, NEW_METADATA) and metadata or nil, value
  return update(M, U, reason)
end

function F.msg(keys, args)
  return F.each(keys, args, ARGUMENTS, function(all, i)
    F.answer(message_call(spread(all, i, i + ARGUMENTS - 1)))
  end)
end

F.upd = F.msg
