-- deq: leases messages, best rank first, after the due rows of the shard. walk.lua chooses them.
--
-- keys: header, a key that never exists. args: 1 versions and time, 2 settings, then for each dequeue: the request, session,
-- call, the last call whose answer the session has, worker, message, filter, cursor. Reply: the status, then each answer: the
-- leases, whether there is more, the cursor; or a refusal. After an answer come its messages. O((max + due + 64) log n) each.

local DEQUEUE_REQUEST = '<BBBHdHI4d'
local HAS_LEASE_TIME, HAS_CALL, HAS_SESSION_LEASE, HAS_WORKER, HAS_RECEIVED, HAS_CURSOR = 1, 2, 4, 8, 16, 32
local DEQUEUE_ARGS = 8

local function lease(M, D)
  local H, now = S.H, S.now
  local wanted = D.lease or M.lease_duration or S.P.default_lease
  local expires_in = math.min(wanted, S.P.max_run)
  local serial = H.serial + 1
  local _, refused = F.apply(M, TRIGGER.Dequeue, false, function(changed)
    changed.left = changed.left - 1
    changed.first_leased_at = changed.first_leased_at or now
    changed.expired_epoch, changed.expired_serial = nil, nil
    changed.lease = {
      epoch = H.epoch, serial = serial, since = now, expires = now + expires_in, cancel = false, session = D.session, call = D.call,
      confirmed = false,
    }
  end)
  if refused then
    return nil, refused
  end
  H.serial = serial
  return {M = M, seq = M.seq, serial = serial, attempt = M.max - M.left, expires_in = expires_in}
end

-- Leases a message that may be served, unless its TTL is over.
function F.take(M, D)
  local at = F.next_due(M)
  if not at or at > S.now then
    D.leases[#D.leases + 1] = lease(M, D)
  elseif D.due_left > 0 then
    F.catch_up(M)
    D.due_left = D.due_left - 1
  else
    D.stopped = true
  end
end

-- Notes that a call got leases.
local function note_leases(D)
  if D.session and #D.leases > 0 then
    F.renew_session(D.session, D.session_lease)
    local R = F.session(D.session)
    F.note_answer(R, D.call, D.leases)
    R.held = R.held + #D.leases
  end
end

-- The answer with these leases, once all is written.
function F.leases_answer(leases, completeness, seen, cursor)
  local parts, messages = {pack('<BBHB', 0, completeness, seen, cursor and 1 or 0), cursor or '', pack('<H', #leases)}, {}
  for i = 1, #leases do
    local L = leases[i]
    parts[#parts + 1] = pack('<I4dI4I5Hd', L.M.epoch, L.seq, L.M.lease.epoch, L.serial, L.attempt, L.expires_in)
    messages[i] = L.M
  end
  F.answer(concat(parts), messages)
end

local function dequeue_one(D)
  local M = F.find_ref(D.message)
  if not M then
    return F.refuse(REFUSED.NOT_FOUND)
  end
  F.catch_up(M)
  if M.state == STATE.Pending and not F.may_serve(M) then
    return F.refuse(REFUSED.VALUE_HELD)
  end
  local leased, refused = lease(M, D)
  if refused then
    return refused
  end
  D.leases[1] = leased
  note_leases(D)
end

local function request_of(args, i)
  local D = {leases = {}, seen = 0, parkings_left = LIMIT.parkings}
  local flags, lease_time, session_lease
  flags, D.bad_call, D.bad, D.max, lease_time, D.look_at, D.attempt, session_lease = parse(DEQUEUE_REQUEST, args[i])
  D.lease = F.has_flag(flags, HAS_LEASE_TIME) and lease_time or nil
  D.session = F.has_flag(flags, HAS_CALL) and args[i + 1] or nil
  D.call = D.session and args[i + 2]
  D.session_lease = F.has_flag(flags, HAS_SESSION_LEASE) and session_lease or nil
  D.received = F.has_flag(flags, HAS_RECEIVED) and args[i + 3] or nil
  D.worker = F.has_flag(flags, HAS_WORKER) and args[i + 4] or nil
  D.message = args[i + 5] ~= '' and args[i + 5] or nil
  D.filter = F.pairs_of(args[i + 6])
  D.cursor = F.has_flag(flags, HAS_CURSOR) and args[i + 7] or nil
  return D
end

-- Answers a dequeue that did not look for the best messages.
local function conclude(refused, leases)
  F.flush()
  if refused then
    F.answer(refused)
  else
    F.leases_answer(leases, COMPLETE, 0)
  end
end

local function dequeue(D)
  if D.session then
    local again, refused = F.replay(D)
    if again or refused then
      return conclude(refused, again or {})
    end
  end
  local refused
  if F.has_flag(S.H.flags, DEQUEUE_BLOCKED) then
    refused = F.blocked(REFUSED.DEQUEUE_BLOCKED, 'dequeue_blocked')
  elseif D.bad ~= 0 then
    refused = F.refuse(REFUSED.INVALID)
  elseif F.is_resting() then
    return conclude(nil, {})
  elseif D.message then
    S.worker = D.worker
    refused = dequeue_one(D)
    S.worker = nil
    return conclude(refused, D.leases)
  end
  if refused then
    return conclude(refused)
  end
  F.recheck()
  local bound = math.max(LIMIT.due, 2 * D.max)
  D.due_left = bound - F.catch_up_shard(bound)
  F.flush()
  S.worker = D.worker
  local cursor = F.choose(D)
  S.worker = nil
  note_leases(D)
  F.flush()
  local is_short = #D.leases < D.max
  local completeness = COMPLETE
  if cursor then
    completeness = PARTIAL
  elseif is_short and (D.stopped or F.is_overdue() or F.has_flag(S.H.flags, RECHECKING)) then
    completeness = MORE
  end
  F.leases_answer(D.leases, completeness, D.seen, cursor)
end

function F.deq(keys, args)
  return F.each(keys, args, DEQUEUE_ARGS, function(i)
    dequeue(request_of(args, i))
  end)
end
