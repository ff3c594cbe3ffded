-- What the shard counts about itself, and the outbox: in the step that changes the messages.
--
-- c: whole numbers of 64 bits, changed by one BITFIELD a call. e: failed attempts and errored messages by signature.
-- v<key>: counts by value of a counted key; w<key>: its values without messages, the longest unchanged first. o: a stream of
-- the rows of each call, under the epoch and the position of its last row.

-- Where each group begins in c.
local ENQUEUED_BYTES, LEASED, COMPLETED_AT, ERRORED_AT, WAIT, RUN, ROW = 0, 1, 9, 17, 25, 41, 57

-- The changes of the counters in this call, which of them are not 0, and the command that writes them. S.touched says how many.
local COUNTS, TOUCHED, FIELD, BITS = {}, {}, {}, {'BITFIELD', ''}
for index = 0, ROW + #TABLE - 1 do
  COUNTS[index], FIELD[index] = 0, '#' .. index
  BITS[index * 4 + 3], BITS[index * 4 + 4] = 'INCRBY', 'i64'
end

local function add(index, number)
  local count = COUNTS[index]
  if count == 0 and number ~= 0 then
    local touched = S.touched + 1
    S.touched, TOUCHED[touched] = touched, index
  end
  COUNTS[index] = count + number
end

local function write_counts(touched)
  BITS[2] = S.keys.c
  for i = 1, touched do
    local index = TOUCHED[i]
    BITS[i * 4 + 1], BITS[i * 4 + 2] = FIELD[index], DIGITS[COUNTS[index]] or COUNTS[index]
  end
  F.forget_counts()
  call(spread(BITS, 1, touched * 4 + 2))
end

function F.forget_counts()
  for i = 1, S.touched do
    COUNTS[TOUCHED[i]] = 0
  end
  S.touched = 0
end

local function attempt_step(attempt)
  return ATTEMPT_STEP[attempt + 1] or ATTEMPT_STEP[#ATTEMPT_STEP]
end

local function time_step(micros)
  for i = 1, #TIME_STEP do
    if micros <= TIME_STEP[i] then
      return i - 1
    end
  end
  return #TIME_STEP
end

local ROW_FENCE, ROW_SESSION, ROW_WORKER, ROW_REASON, ROW_ERROR, ROW_ENQUEUED, ROW_SINCE = 1, 2, 4, 8, 16, 32, 64

local function size_text(value)
  return pack('<H', #value) .. value
end

-- The row for the outbox and for the answer: fixed part, then what its flags say.
local function row_of(M, row, trigger, from, lease, attempt, since)
  local H, to, rows = S.H, row.to, S.rows
  local flags, parts = 0, ''
  lease = lease or M.lease
  if lease then
    flags, parts = ROW_FENCE, pack('<I4I5', lease.epoch, lease.serial)
    if lease.session then
      flags, parts = flags + ROW_SESSION, parts .. lease.session
    end
  end
  if S.worker and trigger == TRIGGER.Dequeue then
    flags, parts = flags + ROW_WORKER, parts .. size_text(S.worker)
  end
  if M.canceled_by == CANCELED.Request and (trigger == TRIGGER.CancelMessage or to == STATE.Canceled) then
    flags, parts = flags + ROW_REASON, parts .. size_text(M.canceled_why)
  end
  if M.error_signature and (trigger == TRIGGER.Fail or to == STATE.Errored) then
    flags, parts = flags + ROW_ERROR, parts .. size_text(M.error_signature) .. size_text(M.error_text)
  end
  if trigger == TRIGGER.Dequeue or from == STATE.Running and to ~= from then
    flags, parts = flags + ROW_SINCE, parts .. pack('<d', since)
  end
  local packed = pack('<BBBBI4dI5dI4dH', flags, trigger, from or NONE, to, M.epoch, M.seq,
    to == NONE and M.version + 1 or M.version, S.now, H.epoch, H.position, attempt) .. parts
  if rows then
    rows[#rows + 1] = packed
  else
    S.rows = {packed}
  end
  if S.P.history == 1 then
    if not from then
      packed = char(flags + ROW_ENQUEUED) .. sub(packed, 2) .. pack('<dI4', M.priority, M.bytes) .. size_text(F.own_keys(M))
        .. size_text(M.s)
    end
    local outbox = S.outbox or {}
    S.outbox = outbox
    outbox[#outbox + 1] = packed
  end
end

-- Counts a row that a message has just gone through, and notes its record. from, lease, attempt and visible_at are those that
-- the message had before; without them it is an enqueue.
function F.record(M, row, trigger, from, lease, attempt, visible_at)
  local H, now, to = S.H, S.now, row.to
  S.clocked = true
  if not from or trigger == TRIGGER.Dequeue then
    attempt = M.max - M.left
  end
  local since = lease and lease.since or visible_at or now
  local waited = now > since and now - since or 0
  H.position = H.position + 1
  add(ROW + row.number, 1)
  if not from then
    add(ENQUEUED_BYTES, M.bytes)
  end
  if trigger == TRIGGER.Dequeue then
    add(LEASED + attempt_step(attempt), 1)
    add(WAIT + time_step(waited), 1)
  end
  if from == STATE.Running and to ~= from then
    add(RUN + time_step(waited), 1)
  end
  if to == STATE.Completed then
    add(COMPLETED_AT + attempt_step(attempt), 1)
  elseif to == STATE.Errored then
    add(ERRORED_AT + attempt_step(attempt), 1)
  elseif to == STATE.Pending then
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
  row_of(M, row, trigger, from, lease, attempt, since)
end

-- Signatures: a field is = and the signature, ~none or ~other.
function F.count_error(M, flow)
  local tag = S.tag
  local field = M.error_signature and '=' .. M.error_signature or '~none'
  S.signatures = S.signatures or {}
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
  if S.touched > 0 then
    F.begin()
    write_counts(S.touched)
  end
  if S.signatures then
    for field, known in pairs(S.signatures) do
      call('HSET', S.keys.e, field, pack('<ddd', known.failed, known.errored, known.changed_at))
    end
  end
  if S.signatures_new then
    call('HSET', S.keys.e, '~own', S.signatures_own)
  end
  if S.values or S.set_uses then
    F.flush_values()
  end
  if S.outbox and S.outbox_max > 0 then
    local id = fmt('%d-%d', S.H.epoch, S.H.position)
    call('XADD', S.keys.o, 'MAXLEN', '~', S.outbox_max, id, 'r', concat(S.outbox))
  end
end
