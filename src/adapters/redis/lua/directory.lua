-- dir: steps of the session directory, as the core defines them for a row. look: reads of what servers share.
--
-- sessions: the rows by session. Beside them: the shards of each session, labels, the order of opening, the last ends, the
-- times at which rows may be forgotten, ends that are not finished. Numbers of calls are 16 hex digits. The time of a step is
-- that of the shards: max(last, min(Redis' time, caller's time + slack)).
--
-- dir. keys: a key that never exists. args: 1 the caller's time, 2 the step, then what it needs. Reply, each O(log n):
-- open (id, label, lease, room): 0, then how the session of the label ended and its shards if there was one; 1 no room
-- begin (id, call, attempt), reserve (id, count), add (id, call, attempt, shard): an answer
-- heard (id, newest call, leased for; of each): answers
-- finish (id, shards): nothing. end (id, how): how it ended and its shards; nothing without a session. O(shards)
-- forget (at most): how many were removed, whether more may be due. O(n log n)
-- An answer: a byte: 0, or why it is refused and how it ended; then the newest call and the touched shards, or a number.
--
-- look. args: 1 what, then what it needs: get (id), ends (after, at most), unfinished (time, for at least, at most), list (time,
-- after, at most), running (see above). O(what is read).

local D -- the state of the present step
local STANDING = '<Bddd' -- format, clock, number of the last opening, number of the last end
local ROW = '<BddddBddc16c16B' -- format, then see read_row
local BAR = '<c16I4'
local ROW_FORMAT = 1
local NO_SESSION, ENDED, TOO_OLD, BARRED = 1, 2, 3, 4
local HALF = 4294967296

local function open_directory(tag, time_)
  local raw = call('GET', tag .. 'session_clock')
  D = {tag = tag, clock = 0, opened = 0, ends = 0, rows = {}, changed = {}, new_ends = {}}
  if raw then
    local format
    format, D.clock, D.opened, D.ends = parse(STANDING, raw)
    if format ~= ROW_FORMAT then
      return redis.error_reply('FORMAT the session directory has another format')
    end
  end
  if time_ then
    local caller, slack = parse('<dd', time_)
    D.now = math.max(D.clock, math.min(redis_time[1] * 1000000 + redis_time[2], caller + slack))
  end
end

local function key_of_shards(id)
  return D.tag .. 'session_shards.' .. id
end

-- The row of a session, as the present step has left it.
local function read_row(id)
  if D.rows[id] then
    return D.rows[id]
  end
  local raw = call('HGET', D.tag .. 'sessions', id)
  if not raw then
    return nil
  end
  local R, format, count, at = {id = id, bars = {}}, nil, nil, nil
  format, R.number, R.lease, R.heard, R.kept, R.how, R.ended_at, R.touched, R.newest, R.floor, count, at = parse(ROW, raw)
  for i = 1, count do
    local number, attempt
    number, attempt, at = parse(BAR, raw, at)
    R.bars[i] = {number, attempt}
  end
  R.label = sub(raw, at)
  D.rows[id] = R
  return R
end

-- Notes that a row has changed. Changed rows are written at the end of the step.
local function write_row(R)
  if not R.changed then
    R.changed, D.rows[R.id] = true, R
    D.changed[#D.changed + 1] = R
  end
end

local function pack_row(R)
  local parts = {
    pack(ROW, ROW_FORMAT, R.number, R.lease, R.heard, R.kept, R.how, R.ended_at, R.touched, R.newest, R.floor, #R.bars),
  }
  for i = 1, #R.bars do
    parts[i + 1] = pack(BAR, R.bars[i][1], R.bars[i][2])
  end
  return concat(parts) .. R.label
end

-- Ends a session that has not ended.
local function end_row(R, how)
  local tag, kept = D.tag, D.now + LIMIT.session_kept
  R.how, R.ended_at = how, D.now
  R.kept = how == EXPIRED and math.max(R.kept, kept) or kept -- no lease outlives another end
  D.ends = D.ends + 1
  D.new_ends[#D.new_ends + 1] = R.id .. char(how)
  F.note_write('ZADD', tag .. 'session_forget', fmt('%.0f', R.kept), R.id)
  if how ~= EXPIRED and call('EXISTS', key_of_shards(R.id)) == 1 then
    F.note_write('ZADD', tag .. 'session_unfinished', fmt('%.0f', D.now), R.id)
  end
end

local function ended_answer(R)
  return pack('<BB', ENDED, R.how)
end

-- A refusal if the session has ended, also if it was silent for longer than its lease and the lateness of news of it.
local function refused_as_ended(R)
  if R.how == ALIVE and D.now - R.heard > R.lease + R.lease / 4 + SHARED.heard_late then
    end_row(R, EXPIRED)
  end
  return R.how ~= ALIVE and ended_answer(R) or nil
end

-- Notes a sign of life. Returns a refusal, or the pulse from before.
local function hear(R, newest, leased)
  local refused = refused_as_ended(R)
  if refused then
    return refused
  end
  local pulse = pack('<Bc16d', 0, R.newest, R.touched)
  R.heard = math.max(R.heard, D.now)
  R.kept = math.max(R.kept, D.now + math.max(R.lease, leased) + LIMIT.session_kept)
  if newest > R.newest then
    R.newest = newest
  end
  return nil, pulse
end

local function barred(R, number, attempt)
  if number <= R.floor then
    return pack('<B', TOO_OLD)
  end
  for i = 1, #R.bars do
    if R.bars[i][1] == number and attempt < R.bars[i][2] then
      return pack('<B', BARRED)
    end
  end
end

local function bar(R, number, attempt)
  local bars, place = R.bars, 1
  while bars[place] and bars[place][1] < number do
    place = place + 1
  end
  if bars[place] and bars[place][1] == number then
    bars[place][2] = math.max(bars[place][2], attempt)
    return
  end
  table.insert(bars, place, {number, attempt})
  if #bars > LIMIT.session_calls then
    local dropped = table.remove(bars, 1)[1]
    if dropped > R.floor then
      R.floor = dropped
    end
  end
end

-- The sum of two numbers of 16 hex digits, at most the greatest.
local function sum(a, b)
  local low = tonumber(sub(a, 9), 16) + tonumber(sub(b, 9), 16)
  local high = tonumber(sub(a, 1, 8), 16) + tonumber(sub(b, 1, 8), 16) + floor(low / HALF)
  if high >= HALF then
    return 'ffffffffffffffff'
  end
  return fmt('%08x%08x', high, low % HALF)
end

local STEP = {}

-- A step on one row, which is stored again.
local function on_row(step)
  return function(args, at)
    local R = read_row(args[at])
    if not R then
      return {pack('<B', NO_SESSION)}
    end
    local answer = step(R, args, at)
    write_row(R)
    return {answer}
  end
end

STEP.begin = on_row(function(R, args, at)
  local number, attempt = args[at + 1], tonumber(args[at + 2])
  local refused, pulse = hear(R, '', 0)
  refused = refused or barred(R, number, attempt)
  if refused then
    return refused
  end
  if attempt > 1 then
    bar(R, number, attempt)
  end
  if number > R.newest then
    R.newest = number
  end
  return pulse
end)

STEP.reserve = on_row(function(R, args, at)
  local first = sum(R.newest, '0000000000000001')
  local refused = hear(R, sum(R.newest, args[at + 1]), 0)
  return refused or pack('<Bc16', 0, first)
end)

STEP.add = on_row(function(R, args, at)
  local number, attempt, shard, shards = args[at + 1], tonumber(args[at + 2]), args[at + 3], key_of_shards(R.id)
  local refused = R.how ~= ALIVE and ended_answer(R) or barred(R, number, attempt)
  if refused then
    return refused
  end
  if call('HEXISTS', shards, shard) == 1 then
    return pack('<BB', 0, 1)
  elseif call('HLEN', shards) >= SHARED.session_shards then
    return pack('<BB', 0, 0)
  end
  R.touched = R.touched + 1
  F.note_write('HSET', shards, shard, '')
  return pack('<BB', 0, 1)
end)

local hear_one = on_row(function(R, args, at)
  local refused, pulse = hear(R, args[at + 1], (parse('<d', args[at + 2])))
  return refused or pulse
end)

function STEP.heard(args)
  local out = {}
  for i = 3, #args, 3 do
    out[#out + 1] = hear_one(args, i)[1]
  end
  return out
end

-- How a session ended, and the shards that it has left.
local function end_of(R)
  return char(R.how), concat(call('HKEYS', key_of_shards(R.id)))
end

function STEP.open(args)
  local tag, id, label, lease, room = D.tag, args[3], args[4], parse('<d', args[5]), tonumber(args[6])
  if call('HEXISTS', tag .. 'sessions', id) == 1 then
    return {0}
  elseif call('HLEN', tag .. 'sessions') >= room then
    return {1}
  end
  local zero = '0000000000000000'
  D.opened = D.opened + 1
  local R = {
    id = id, label = label, number = D.opened, lease = lease, heard = D.now, kept = D.now + lease + LIMIT.session_kept,
    how = ALIVE, ended_at = 0, touched = 0, newest = zero, floor = zero, bars = {},
  }
  write_row(R)
  F.note_write('ZADD', tag .. 'session_order', fmt('%.0f', D.opened), id)
  F.note_write('ZADD', tag .. 'session_forget', fmt('%.0f', R.kept), id)
  if label == '' then
    return {0}
  end
  local earlier = call('HGET', tag .. 'session_labels', label)
  F.note_write('HSET', tag .. 'session_labels', label, id)
  local E = earlier and read_row(earlier)
  if not E or E.how ~= ALIVE then
    return {0}
  end
  end_row(E, REPLACED)
  write_row(E)
  return {0, E.id, end_of(E)}
end

STEP['end'] = function(args)
  local R = read_row(args[3])
  if not R then
    return {}
  end
  if R.how == ALIVE then
    end_row(R, tonumber(args[4]))
    write_row(R)
  end
  return {end_of(R)}
end

function STEP.finish(args)
  local id, shards, finished, left = args[3], key_of_shards(args[3]), {}, 0
  for i = 4, #args do
    finished[args[i]] = true
  end
  local held = call('HKEYS', shards)
  for i = 1, #held do
    left = left + (finished[held[i]] and 0 or 1)
  end
  F.note_write('HDEL', shards, spread(args, 4))
  if left == 0 and call('ZSCORE', D.tag .. 'session_unfinished', id) then
    F.note_write('ZREM', D.tag .. 'session_unfinished', id)
    F.note_write('ZADD', D.tag .. 'session_forget', fmt('%.0f', read_row(id).kept), id)
  end
  return {}
end

local function forget_row(R)
  local tag = D.tag
  F.note_write('HDEL', tag .. 'sessions', R.id)
  F.note_write('ZREM', tag .. 'session_order', R.id)
  F.note_write('ZREM', tag .. 'session_forget', R.id)
  F.note_write('UNLINK', key_of_shards(R.id))
  if R.label ~= '' and call('HGET', tag .. 'session_labels', R.label) == R.id then
    F.note_write('HDEL', tag .. 'session_labels', R.label)
  end
end

-- The times in session_forget are those of the last look, because signs of life would change them too often.
function STEP.forget(args)
  local tag, most, removed = D.tag, tonumber(args[3]), 0
  local due = call('ZRANGEBYSCORE', tag .. 'session_forget', '-inf', fmt('%.0f', D.now), 'LIMIT', 0, SHARED.rows)
  local at = 1
  while at <= #due and removed < most do
    local R = read_row(due[at])
    if R.kept > D.now then
      F.note_write('ZADD', tag .. 'session_forget', fmt('%.0f', R.kept), R.id)
    elseif call('ZSCORE', tag .. 'session_unfinished', R.id) then
      F.note_write('ZREM', tag .. 'session_forget', R.id) -- until its last shard is finished
    else
      forget_row(R)
      removed = removed + 1
    end
    at = at + 1
  end
  return {removed, (#due == SHARED.rows or at <= #due) and 1 or 0}
end

-- Notes what the step collected beside its writes.
local function write_collected()
  local tag = D.tag
  if #D.new_ends > 0 then
    F.note_write('RPUSH', tag .. 'session_ends', spread(D.new_ends))
    F.note_write('LTRIM', tag .. 'session_ends', -SHARED.session_ends, -1)
  end
  local rows = {}
  for i = 1, #D.changed do
    rows[2 * i - 1], rows[2 * i] = D.changed[i].id, pack_row(D.changed[i])
  end
  if #rows > 0 then
    F.note_write('HSET', tag .. 'sessions', spread(rows))
  end
end

function F.dir(keys, args)
  local failed = open_directory(F.begin_step('dir', keys), args[1])
  if failed then
    return failed
  end
  local opened, ends = D.opened, D.ends
  local reply = STEP[args[2]](args, 3)
  write_collected()
  local standing = pack(STANDING, ROW_FORMAT, D.now, D.opened, D.ends)
  if D.opened == opened and D.ends == ends then
    call('SET', D.tag .. 'session_clock', standing) -- without the rest of the step it says only that time has passed
  else
    F.note_write('SET', D.tag .. 'session_clock', standing)
  end
  F.end_step()
  return reply
end

local function show(out, id)
  local raw = call('HGET', D.tag .. 'sessions', id)
  out[#out + 1] = id
  out[#out + 1] = raw
  out[#out + 1] = concat(call('HKEYS', key_of_shards(id)))
end

function F.LOOK.get(_, args)
  local out = {}
  if call('HEXISTS', D.tag .. 'sessions', args[2]) == 1 then
    show(out, args[2])
  end
  return out
end

-- Reply: the position after the last end of the page, whether none is missing, the ends. Without a position: the present one.
function F.LOOK.ends(tag, args)
  if args[2] == '' then
    return {pack('<d', D.ends), 1, ''}
  end
  local after, most = parse('<d', args[2]), tonumber(args[3])
  local before_first = D.ends - call('LLEN', tag .. 'session_ends')
  local is_complete = before_first <= after and after <= D.ends
  if not is_complete then
    after = before_first
  end
  local from = after - before_first
  local ends = call('LRANGE', tag .. 'session_ends', fmt('%.0f', from), fmt('%.0f', from + most - 1))
  return {pack('<d', after + #ends), is_complete and 1 or 0, concat(ends)}
end

function F.LOOK.unfinished(tag, args)
  local latest = D.now - parse('<d', args[3])
  local ids, out = call('ZRANGEBYSCORE', tag .. 'session_unfinished', '-inf', fmt('%.0f', latest), 'LIMIT', 0, args[4]), {}
  for i = 1, #ids do
    local R = read_row(ids[i])
    out[#out + 1] = R.id
    out[#out + 1], out[#out + 2] = end_of(R)
  end
  return out
end

-- Reply: the time, the position after the page (-1 at the end), then rows.
function F.LOOK.list(tag, args)
  local after, most = parse('<d', args[3]), tonumber(args[4])
  local found = call('ZRANGEBYSCORE', tag .. 'session_order', '(' .. fmt('%.0f', after), '+inf', 'WITHSCORES', 'LIMIT', 0,
    most + 1)
  local count = math.min(most, #found / 2)
  local out = {pack('<dd', D.now, #found / 2 > most and tonumber(found[2 * count]) or -1)}
  for i = 1, count do
    show(out, found[2 * i - 1])
  end
  return out
end

function F.look(keys, args)
  local what = args[1]
  if not call then
    F.init()
  end
  local failed = open_directory(sub(keys[1], 1, -2), (what == 'unfinished' or what == 'list') and args[2] or nil)
  if failed then
    return failed
  end
  return F.LOOK[what](D.tag, args)
end
