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

-- Leases a message to the first of several dequeues that still wants one. Its rows are those of its answer.
local function give_to_first(M, D)
  local part, leases = D.parts[D.at], D.leases
  S.worker = part.worker
  local leased = lease(M, part)
  leases[#leases + 1], part.leases[#part.leases + 1] = leased, leased
  if #part.leases == part.max then
    part.rows, S.rows, D.at, D.parkings_left = S.rows, false, D.at + 1, LIMIT.parkings
  end
end

-- Leases a message that may be served, unless its TTL is over.
function F.take(M, D)
  local at = F.next_due(M)
  if not at or at > S.now then
    if D.parts then
      give_to_first(M, D)
    else
      D.leases[#D.leases + 1] = lease(M, D)
    end
  elseif D.due_left > 0 then
    F.catch_up(M)
    D.due_left = D.due_left - 1
  else
    D.stopped = true
  end
end

-- Notes what dequeues of sessions got. Those of one session renew the same lease.
local function note_leases(dequeues)
  local of_session, order = {}, {}
  for i = 1, #dequeues do
    local D = dequeues[i]
    local id = D.session
    if id and #D.leases > 0 then
      if not of_session[id] then
        of_session[id], order[#order + 1] = {}, id
      end
      local calls = of_session[id]
      calls[#calls + 1] = D
    end
  end
  for i = 1, #order do
    local id = order[i]
    local calls = of_session[id]
    F.renew_session(id, calls[1].session_lease)
    F.note_answers(F.session(id), calls)
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
  note_leases({D})
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
  note_leases({D})
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

-- Whether the shard may answer neighbours by one choice: nothing has to happen before the choice of each.
local function may_share()
  local flags = S.H.flags
  local is_open = flags % 4 < DEQUEUE_BLOCKED and not F.has_flag(flags, RECHECKING)
  return is_open and not F.is_quiet() and not F.is_resting() and not F.is_overdue()
end

-- Whether a call is new to its session, and above the calls of the session among its neighbours. Sessions that are not known yet
-- must have room beside each other.
local function is_first_try(id, number, seen)
  local R, last = F.session(id), seen.calls[id]
  if last and number <= last then
    return false
  elseif not R then
    seen.new_sessions = seen.new_sessions + (last and 0 or 1)
    return S.H.sessions + seen.new_sessions <= LIMIT.sessions
  elseif R.ended ~= ALIVE or R.expires >= 0 or number <= R.floor then
    return false
  end
  for i = 1, #R.answered do
    if R.answered[i] == number then
      return false
    end
  end
  for i = 1, #R.bars do
    if R.bars[i].call == number then
      return false
    end
  end
  return true
end

-- Whether a dequeue asks for the best messages of an index, and nothing else. That of a session may be the first try of a call
-- that renews no lease and confirms none. seen: the calls of sessions among its neighbours.
local function is_plain(args, i, seen)
  local flags, bad_call, bad, most, _, _, attempt = parse(DEQUEUE_REQUEST, args[i])
  if bad ~= 0 or most == 0 or flags >= HAS_CURSOR or args[i + 5] ~= '' then
    return false
  elseif flags % 4 < HAS_CALL then
    return true
  end
  local id, number = args[i + 1], args[i + 2]
  local is_simple = bad_call == 0 and attempt == 1 and flags % 8 < HAS_SESSION_LEASE and flags % 32 < HAS_RECEIVED
  if not is_simple or not is_first_try(id, number, seen) then
    return false
  end
  seen.calls[id] = number
  return true
end

-- The last of the neighbours from here on that one choice answers: plain dequeues with the same filter.
local function last_of_choice(args, first)
  local last, filter, seen = first, args[first + 6], {calls = {}, new_sessions = 0}
  local next_ = first + DEQUEUE_ARGS
  if not args[next_] or args[next_ + 6] ~= filter or not may_share() or not is_plain(args, first, seen) then
    return first
  end
  local _, is_exact = F.source(F.pairs_of(filter))
  while is_exact and args[next_] and args[next_ + 6] == filter and is_plain(args, next_, seen) do
    last, next_ = next_, next_ + DEQUEUE_ARGS
  end
  return last
end

local function part_of(args, i)
  local flags, _, _, most, lease_time = parse(DEQUEUE_REQUEST, args[i])
  local session = flags % 4 >= HAS_CALL and args[i + 1] or nil
  return {
    max = most, lease = flags % 2 >= HAS_LEASE_TIME and lease_time or nil,
    worker = flags % 16 >= HAS_WORKER and args[i + 4] or nil, session = session, call = session and args[i + 2], leases = {},
    rows = false, completeness = COMPLETE,
  }
end

-- Chooses for the dequeues from D.at on, until one of them has to stop. That one has what it got, and more is left for it.
local function choose_for_parts(D)
  local parts = D.parts
  D.stopped, D.parkings_left = false, LIMIT.parkings
  F.choose(D)
  S.worker = nil
  local part = parts[D.at]
  if D.stopped then
    part.completeness, D.max, D.at = MORE, D.max - part.max + #part.leases, D.at + 1
  end
  if part then
    part.rows, S.rows = S.rows, false
  end
end

-- Answers neighbours as if each had chosen after the one before it, with one look at the index and one write.
local function dequeue_together(args, first, last)
  local parts, max = {}, 0
  for i = first, last, DEQUEUE_ARGS do
    local part = part_of(args, i)
    parts[#parts + 1], max = part, max + part.max
  end
  local D = {max = max, filter = F.pairs_of(args[first + 6]), leases = {}, due_left = 0, parts = parts, at = 1}
  repeat
    choose_for_parts(D)
    if D.stopped then
      F.flush()
    end
  until not D.stopped or D.at > #parts
  note_leases(parts)
  F.flush()
  for at = 1, #parts do
    local part = parts[at]
    S.rows = part.rows
    F.leases_answer(part.leases, part.completeness, 0)
  end
end

function F.deq(keys, args)
  return F.each(keys, args, DEQUEUE_ARGS, function(all, i)
    local last = last_of_choice(all, i)
    if last > i then
      dequeue_together(all, i, last)
    else
      dequeue(request_of(all, i))
    end
    return last
  end)
end
