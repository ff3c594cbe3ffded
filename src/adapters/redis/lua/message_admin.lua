-- msg: cancels, updates, redrives or discards single messages.
--
-- keys: header, a key that never exists. args: 1 versions and time, 2 settings, then for each: the request, the message, the
-- reason of a cancel or the token of an update. Reply: the status, then each answer: the state and version of the message, or
-- how many changed, or a refusal. O(log n) each.

local MESSAGE_REQUEST = '<BHBdddc8'
local CANCEL_MESSAGE, UPDATE, REDRIVE, DISCARD = 0, 1, 2, 3
local HAS_PRIORITY, HAS_VISIBLE_AT, HAS_INVISIBILITY, ONLY_IF_SOONER, HAS_VERSION, HAS_TOKEN = 1, 2, 4, 8, 16, 32

local function settlement(M)
  return pack('<BBd', 0, M.state, M.version)
end

local function cancel_message(M, reason)
  local is_asked = M.lease and M.lease.cancel
  if is_asked or M.state == STATE.Canceled then
    return settlement(M)
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
  return refused or settlement(M)
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
  local _, refused = F.apply(M, TRIGGER.Update, visible_at > now, function(changed, to)
    changed.priority = U.priority or changed.priority
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

local function message_call(raw, ref, reason)
  local U, kind, flags, priority, visible_at, number = {}, nil, nil, nil, nil, nil
  kind, flags, U.bad, priority, visible_at, number, U.fingerprint = parse(MESSAGE_REQUEST, raw)
  local M = F.find_ref(ref)
  if not M then
    return F.refuse(REFUSED.NOT_FOUND)
  end
  F.catch_up(M)
  if kind == CANCEL_MESSAGE then
    return cancel_message(M, reason)
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
  return update(M, U, reason)
end

function F.msg(keys, args)
  return F.each(keys, args, 3, function(all, i)
    F.answer(message_call(all[i], all[i + 1], all[i + 2]))
  end)
end
