-- deq: leases messages, best rank first, after the due rows of the shard. walk.lua chooses them.
--
-- keys: header, a key that never exists. args: 1 versions and time, 2 settings, then for each dequeue: the request, session,
-- call, the last call whose answer the session has, worker, message, filter, cursor. Reply: the status, then each answer: the
-- leases, whether there is more, the cursor; or a refusal. After an answer come its messages. O((max + due + 64) log n) each.

local DEQUEUE_REQUEST = '<BBBHdHI4d'
local HAS_LEASE_TIME, HAS_CALL, HAS_SESSION_LEASE, HAS_WORKER, HAS_RECEIVED, HAS_CURSOR = 1, 2, 4, 8, 16, 32
local DEQUEUE_ARGS = 8

-- How long a lease of this message lasts.
local function duration_of(M, D)
  local wanted, most = D.lease or M.lease_duration or S.P.default_lease, S.P.max_run
  return wanted < most and wanted or most
end

local function give(M, _, D)
  local H, now = S.H, S.now
  M.left = M.left - 1
  M.first_leased_at = M.first_leased_at or now
  if M.expired_serial then
    M.expired_epoch, M.expired_serial = nil, nil
  end
  M.lease = {
    epoch = H.epoch, serial = H.serial + 1, since = now, expires = now + duration_of(M, D), cancel = false, session = D.session,
    call = D.call, confirmed = false,
  }
end

local function lease(M, D)
  local H = S.H
  local expires_in, serial = duration_of(M, D), H.serial + 1
  local _, refused = F.apply(M, TRIGGER.Dequeue, false, give, D)
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
    parts[i + 3] = pack('<I4dI4I5Hd', L.M.epoch, L.seq, L.M.lease.epoch, L.serial, L.attempt, L.expires_in)
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

-- The dequeue that is being answered, of which each field is set anew.
local D_OF_CALL = {}

local function request_of(args, i)
  local flags, bad_call, bad, most, lease_time, look_at, attempt, session_lease = parse(DEQUEUE_REQUEST, args[i])
  local session, message = flags % 4 >= HAS_CALL and args[i + 1] or nil, args[i + 5]
  local D = D_OF_CALL
  D.bad_call, D.bad, D.max, D.look_at, D.attempt = bad_call, bad, most, look_at, attempt
  D.session, D.call, D.message = session, session and args[i + 2], message ~= '' and message or nil
  D.lease = flags % 2 >= HAS_LEASE_TIME and lease_time or nil
  D.session_lease = flags % 8 >= HAS_SESSION_LEASE and session_lease or nil
  D.worker = flags % 16 >= HAS_WORKER and args[i + 4] or nil
  D.received = flags % 32 >= HAS_RECEIVED and args[i + 3] or nil
  D.cursor = flags % 64 >= HAS_CURSOR and args[i + 7] or nil
  D.filter, D.leases = F.pairs_of(args[i + 6]), {}
  D.seen, D.parkings_left, D.due_left, D.stopped = 0, LIMIT.parkings, 0, false
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
  if S.H.flags % 4 >= DEQUEUE_BLOCKED then
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
  local bound = 2 * D.max > LIMIT.due and 2 * D.max or LIMIT.due
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
  return F.each(keys, args, DEQUEUE_ARGS, function(all, i)
    dequeue(request_of(all, i))
  end)
end
