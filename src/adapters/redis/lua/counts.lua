-- What the shard counts about itself, and the outbox: in the step that changes the messages.
--
-- c: whole numbers of 64 bits, changed by one BITFIELD a call. e: failed attempts and errored messages by signature.
-- v<key>: counts by value of a counted key; w<key>: its values without messages, the longest unchanged first. o: a stream of
-- the rows of each call, under the epoch and the position of its last row.

-- Where each group begins in c.
local ENQUEUED_BYTES, LEASED, COMPLETED_AT, ERRORED_AT, WAIT, RUN, ROW = 0, 1, 9, 17, 25, 41, 57

local function add(index, number)
  S.counts[index] = (S.counts[index] or 0) + number
end

local function attempt_step(attempt)
  return ATTEMPT_STEP[math.min(attempt, #ATTEMPT_STEP - 1) + 1]
end

local function time_step(micros)
  for i = 1, #TIME_STEP do
    if micros <= TIME_STEP[i] then
      return i - 1
    end
  end
  return #TIME_STEP
end

local ROW_FENCE, ROW_SESSION, ROW_WORKER, ROW_REASON, ROW_ERROR, ROW_ENQUEUED = 1, 2, 4, 8, 16, 32

local function size_text(value)
  return pack('<H', #value) .. value
end

-- The row for the outbox and for the answer: fixed part, then what its flags say.
local function row_of(M, before, row, trigger, attempt)
  local H, to = S.H, row.to
  local flags, parts = 0, {}
  local lease = before and before.lease or M.lease
  if lease then
    flags = flags + ROW_FENCE
    parts[1] = pack('<I4I5', lease.epoch, lease.serial)
    if lease.session then
      flags = flags + ROW_SESSION
      parts[2] = lease.session
    end
  end
  if trigger == TRIGGER.Dequeue and S.worker then
    flags = flags + ROW_WORKER
    parts[#parts + 1] = size_text(S.worker)
  end
  if M.canceled_by == CANCELED.Request and (trigger == TRIGGER.CancelMessage or to == STATE.Canceled) then
    flags = flags + ROW_REASON
    parts[#parts + 1] = size_text(M.canceled_why)
  end
  if M.error_signature and (trigger == TRIGGER.Fail or to == STATE.Errored) then
    flags = flags + ROW_ERROR
    parts[#parts + 1] = size_text(M.error_signature) .. size_text(M.error_text)
  end
  local rest = pack('<BBBI4dI5dI4dH', trigger, before and before.state or NONE, to, M.epoch, M.seq,
    to == NONE and M.version + 1 or M.version, S.now, H.epoch, H.position, attempt) .. concat(parts)
  S.rows[#S.rows + 1] = char(flags) .. rest
  if S.P.history == 1 then
    if not before then
      rest = rest .. pack('<dI4', M.priority, M.bytes) .. size_text(F.own_keys(M)) .. size_text(M.s)
      flags = flags + ROW_ENQUEUED
    end
    S.outbox[#S.outbox + 1] = char(flags) .. rest
  end
end

-- Counts a row that a message has just gone through, and notes its record. Without before it is an enqueue.
function F.record(M, before, row, trigger)
  local H, now, to = S.H, S.now, row.to
  S.clocked = true
  local lease = before and before.lease
  local attempt = before and trigger ~= TRIGGER.Dequeue and before.attempt or M.max - M.left
  local since = lease and lease.since or before and before.visible_at or now
  H.position = H.position + 1
  add(ROW + row.number, 1)
  local step, from = attempt_step(attempt), before and before.state
  if not before then
    add(ENQUEUED_BYTES, M.bytes)
  end
  if trigger == TRIGGER.Dequeue then
    add(LEASED + step, 1)
    add(WAIT + time_step(math.max(0, now - since)), 1)
  end
  if from == STATE.Running and to ~= from then
    add(RUN + time_step(math.max(0, now - since)), 1)
  end
  if to == STATE.Completed then
    add(COMPLETED_AT + step, 1)
  elseif to == STATE.Errored then
    add(ERRORED_AT + step, 1)
  end
  if to == STATE.Pending then
    H.arrived = H.arrived + 1
  end
  if trigger == TRIGGER.Fail then
    F.count_error(M, 'failed')
  end
  if to == STATE.Errored then
    F.count_error(M, 'errored')
  end
  if M.key_set ~= 0 then
    F.count_values(M, trigger, from, to)
  end
  row_of(M, before, row, trigger, attempt)
end

-- Signatures: a field is = and the signature, ~none or ~other.
function F.count_error(M, flow)
  local tag = S.tag
  local field = M.error_signature and '=' .. M.error_signature or '~none'
  local known = S.signatures[field]
  if not known then
    local raw = call('HGET', tag .. 'e', field)
    if not raw and M.error_signature then
      S.signatures_own = S.signatures_own or tonumber(call('HGET', tag .. 'e', '~own') or 0)
      if S.signatures_own >= LIMIT.signatures then
        field = '~other'
        raw = S.signatures[field] and '' or call('HGET', tag .. 'e', field)
      else
        S.signatures_own = S.signatures_own + 1
        S.signatures_new = true
      end
    end
    known = S.signatures[field]
    if not known then
      known = {failed = 0, errored = 0}
      if raw then
        known.failed, known.errored = parse('<dd', raw)
      end
      S.signatures[field] = known
    end
  end
  known[flow] = known[flow] + 1
  known.changed_at = S.H.position
end

-- Writes the counts and the outbox entry of the call.
function F.flush_counts()
  local tag, changes = S.tag, {'BITFIELD', S.tag .. 'c'}
  for index, number in pairs(S.counts) do
    local at = #changes
    changes[at + 1], changes[at + 2], changes[at + 3], changes[at + 4] = 'INCRBY', 'i64', '#' .. index, fmt('%.0f', number)
  end
  if #changes > 2 then
    F.begin()
    call(spread(changes))
  end
  for field, known in pairs(S.signatures) do
    call('HSET', tag .. 'e', field, pack('<ddd', known.failed, known.errored, known.changed_at))
  end
  if S.signatures_new then
    call('HSET', tag .. 'e', '~own', fmt('%.0f', S.signatures_own))
  end
  F.flush_values()
  if #S.outbox > 0 and S.outbox_max > 0 then
    local id = fmt('%.0f-%.0f', S.H.epoch, S.H.position)
    call('XADD', tag .. 'o', 'MAXLEN', '~', S.outbox_max, id, 'r', concat(S.outbox))
  end
end
