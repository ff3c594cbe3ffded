-- set: ends or extends leases. Only its fence proves a lease: another one is refused as LEASE_LOST, but for the repeat of the
-- last settlement and a late completion before the next lease.
--
-- keys: header, a key that never exists. args: 1 versions and time, 2 settings, then for each lease: the request, the retry
-- delays of its draw, the signature and the text of its error. Reply: the status, then each answer: the state and version of
-- the message, or what is left of the lease, or a refusal. O(log n) each.

local SETTLE_REQUEST = '<BBBI4dI4dd'
local SETTLE_ARGS = 4
local SETTLE_EXTEND = 4 -- after the four ways to settle, in the place of one
local HAS_DELAY, HAS_FAILURE = 1, 2

local function is_held(M, epoch, serial)
  return M.lease ~= nil and M.lease.epoch == epoch and M.lease.serial == serial
end

-- Whether the message has this lease, after its due rows.
local function holds_lease(M, epoch, serial)
  if not is_held(M, epoch, serial) and not (M.expired_epoch == epoch and M.expired_serial == serial) then
    return false
  end
  F.catch_up(M)
  return is_held(M, epoch, serial)
end

local function complete(M)
  if M.canceled_by then
    M.canceled_by, M.canceled_why = nil, nil
  end
end

local function complete_late(M)
  M.expired_epoch, M.expired_serial = nil, nil
end

local function cancel(M)
  if M.canceled_by ~= CANCELED.Request then -- the reason is that of the request; the worker only carries it out
    M.canceled_by, M.canceled_why = CANCELED.Worker, nil
  end
end

-- The delay after an attempt of this number, of the list that Rust made for the draw.
local function delay_of(delays, attempt)
  local count = #delays / 8
  return (parse('<d', delays, (math.min(attempt, count) - 1) * 8 + 1))
end

local function fail(M, _, failure)
  M.visible_at = S.now + failure.delay
  M.error_signature, M.error_text = failure.signature, failure.text
end

local function extend_lease(M, _, expires)
  local L = M.lease
  M.lease = {
    epoch = L.epoch, serial = L.serial, since = L.since, expires = expires, cancel = L.cancel, session = L.session, call = L.call,
    confirmed = L.confirmed,
  }
end

local function extend(M, lease)
  local L = M.lease
  local expires = math.min(S.now + lease, L.since + S.P.max_run)
  local canceled = L.cancel and 1 or 0
  if expires <= S.now then
    F.expire_lease(M)
    F.catch_up(M)
    return pack('<BdB', 0, 0, canceled)
  end
  local _, refused = F.apply(M, TRIGGER.Extend, false, extend_lease, expires)
  if refused then
    return refused
  end
  return pack('<BdB', 0, F.next_due(M) - S.now, canceled)
end

local function settle(raw, delays, signature, text_)
  local verb, bad, flags, key_epoch, seq, epoch, serial, duration = parse(SETTLE_REQUEST, raw)
  local M = F.message(seq)
  if verb == SETTLE_EXTEND then
    if bad ~= 0 then
      return F.refuse(REFUSED.INVALID)
    elseif not M or M.epoch ~= key_epoch or not holds_lease(M, epoch, serial) then
      return F.refuse(REFUSED.LEASE_LOST)
    end
    return extend(M, duration)
  end
  if not M or M.epoch ~= key_epoch then
    return F.refuse(REFUSED.LEASE_LOST)
  end
  local last = M.settled
  if last and last.epoch == epoch and last.serial == serial and last.verb == verb then
    return pack('<BBd', 0, last.state, last.version)
  elseif bad ~= 0 then
    return F.refuse(REFUSED.INVALID)
  end
  local to, refused
  if holds_lease(M, epoch, serial) then
    if verb == VERB.Complete then
      to, refused = F.apply(M, TRIGGER.Complete, false, complete)
    elseif verb == VERB.Cancel then
      to, refused = F.apply(M, TRIGGER.Cancel, false, cancel)
    elseif verb == VERB.Fail then
      local delay = F.has_flag(flags, HAS_DELAY) and duration or delay_of(delays, M.max - M.left)
      local has_error = F.has_flag(flags, HAS_FAILURE)
      local failure = {delay = delay, signature = has_error and signature or nil, text = has_error and text_ or nil}
      to, refused = F.apply(M, TRIGGER.Fail, delay > 0, fail, failure)
    else
      to, refused = F.release(M)
    end
  elseif verb == VERB.Complete and M.expired_epoch == epoch and M.expired_serial == serial then
    to, refused = F.apply(M, TRIGGER.LateComplete, false, complete_late)
  else
    return F.refuse(REFUSED.LEASE_LOST)
  end
  if not to then
    return refused
  end
  F.catch_up(M) -- what returns may have outlived its TTL
  F.touch(M)
  M.settled = {epoch = epoch, serial = serial, verb = verb, state = M.state, version = M.version}
  return pack('<BBd', 0, M.state, M.version)
end

-- Reads the messages of several leases.
local function read_settled(args)
  local sequences = {}
  for i = 3, #args, SETTLE_ARGS do
    local _, _, _, _, seq = parse(SETTLE_REQUEST, args[i])
    sequences[#sequences + 1] = seq
  end
  F.read_ahead(sequences, false)
end

function F.set(keys, args)
  return F.each(keys, args, SETTLE_ARGS, function(all, i)
    if i == 3 and #all > SETTLE_ARGS + 2 then
      read_settled(all)
    end
    F.answer(settle(all[i], all[i + 1], all[i + 2], all[i + 3]))
  end)
end
