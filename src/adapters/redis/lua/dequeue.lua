-- deq: leases messages, best rank first, after the due rows of the shard. A filter walks the pending messages in the order of
-- their ranks, a bounded number in a call, and answers with a cursor.
--
-- keys: header, a key that never exists. args: 1 versions and time, 2 settings, then for each dequeue: the request, session,
-- call, the last call whose answer the session has, worker, message, filter, cursor. Reply: the status, then each answer: the
-- leases, whether there is more, the cursor; or a refusal. After an answer come its messages. O((max + due) log n) each.

local DEQUEUE_REQUEST = '<BBBHdHI4d'
local HAS_LEASE_TIME, HAS_CALL, HAS_SESSION_LEASE, HAS_WORKER, HAS_RECEIVED, HAS_CURSOR = 1, 2, 4, 8, 16, 32
local DEQUEUE_ARGS = 8
local WALK_PAGE = 64

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
local function take(M, D)
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

local function take_best(D)
  local from, tag = 0, S.tag
  while #D.leases < D.max and not D.stopped do
    local members = call('ZRANGE', tag .. 'p', from, from + D.max - #D.leases - 1)
    if #members == 0 then
      return
    end
    for i = 1, #members do
      take(F.whole_message(F.sequence_of(members[i])), D)
      if D.stopped then
        return
      end
    end
    from = from + #members
  end
end

-- The place in p of the first message after a rank.
local function place_after(priority, seq)
  local p, score, member = S.tag .. 'p', fmt('%.17g', priority), F.member(seq)
  local low = call('ZCOUNT', p, '-inf', '(' .. score)
  local high = low + call('ZCOUNT', p, score, score)
  while low < high do
    local middle = floor((low + high) / 2)
    if call('ZRANGE', p, middle, middle)[1] <= member then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Examines pending messages from the cursor on. Returns the new cursor, if it did not reach the end.
local function walk(D)
  local began, tag = D.cursor, S.tag
  local after_priority, after_seq, since = -math.huge, 0, S.now
  local place = 0
  if began then
    after_priority, after_seq, since = parse('<ddd', began)
    place = after_priority > -math.huge and place_after(after_priority, after_seq) or 0
  end
  local page, at = {}, 0
  while #D.leases < D.max do
    if at >= #page / 2 then
      page, at = call('ZRANGE', tag .. 'p', place, place + WALK_PAGE - 1, 'WITHSCORES'), 0
      place = place + WALK_PAGE
    end
    if #page == 0 then
      local is_behind = began and S.H.moved >= since
      return is_behind and pack('<ddd', -math.huge, 0, S.now) or nil
    end
    local before = pack('<ddd', after_priority, after_seq, since)
    if D.seen == D.look_at then
      return before
    end
    D.seen, at = D.seen + 1, at + 1
    local M = F.whole_message(F.sequence_of(page[at * 2 - 1]))
    after_priority, after_seq = tonumber(page[at * 2]), M.seq
    if F.matches(M, D.filter) then
      take(M, D)
      if D.stopped then
        return before
      end
    end
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
  local leased, refused = lease(M, D)
  if refused then
    return refused
  end
  D.leases[1] = leased
  note_leases(D)
end

local function request_of(args, i)
  local D = {leases = {}, seen = 0}
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
  local bound = math.max(LIMIT.due, 2 * D.max)
  D.due_left = bound - F.catch_up_shard(bound)
  F.flush()
  S.worker = D.worker
  local cursor
  if #D.filter == 0 then
    take_best(D)
  else
    cursor = walk(D)
  end
  S.worker = nil
  note_leases(D)
  F.flush()
  local is_short = #D.leases < D.max
  local completeness = COMPLETE
  if cursor then
    completeness = PARTIAL
  elseif is_short and (D.stopped or F.is_overdue()) then
    completeness = MORE
  end
  F.leases_answer(D.leases, completeness, D.seen, cursor)
end

function F.deq(keys, args)
  return F.each(keys, args, DEQUEUE_ARGS, function(i)
    dequeue(request_of(args, i))
  end)
end
