-- The frame of every function: built-ins, the header of the shard, its clock, refusals.
--
-- A call has two phases. First it computes: it reads messages and records into the tables of S and changes them there. Then
-- it writes: F.begin stores the sequences and serials that it took together with a mark, F.finish stores the header without
-- the mark. An error in the first phase leaves nothing; one in the second leaves the mark, and later calls say INCONSISTENT.
--
-- Globals are closed while a library is loaded, so F.init takes them at the first call.

local F = {}
local S -- the state of the present call
local call, pack, parse, concat, sort, floor, byte, sub, char, fmt, spread, sha1
local RUN -- names the life of this process of the server

-- The header. Its first part is what F.begin writes: the mark, the format, the last sequence, the last serial. At its end is
-- the life of the process that served the shard last.
local HEADER_FIRST = '<BBdd'
local HEADER_REST -- three small numbers, then doubles
local HEADER_FIRST_BYTES = 18
local HEADER_NAMES = {
  'flags', 'number', 'epoch', 'version', 'clock', 'age', 'step', 'arrived', 'moved', 'floor', 'position',
  'm0', 'b0', 'm1', 'b1', 'm2', 'b2', 'm3', 'b3', 'm4', 'b4', 'm5', 'b5',
  'ids', 'buckets', 'records', 'outlived', 'oldest', 'sessions', 'deleted', 'lost_floor', 'lost_sequence',
  'quiet_until', 'rest_until',
}
local FORMAT = 1
local DROPPED = 255 -- in place of the format: the tombstone of a dropped shard
local ENQUEUE_BLOCKED, DEQUEUE_BLOCKED, TRUSTS_WALL, RECHECKING, HAS_SHAPES, FILLING, DROPPING = 1, 2, 4, 8, 16, 32, 64 -- flags
local NONE = 255 -- in place of a state
local NO_STATE = 6 -- the state of a message that does not exist yet, as a cause of rows
local CLOSED, REPLACED, EXPIRED, ALIVE = 0, 1, 2, 255 -- how a session ended
local COMPLETE, MORE, PARTIAL = 0, 1, 2 -- whether a reply is complete
local PAGE, PAGE_HEAD = 1024, 4 -- sequences of a page of states, and the bytes before them
local RUN_BYTES = 16
local CALLER = '<ddddddddc16' -- version, epoch, time, slack, entries of the outbox, wall time, rest, seen step, life
local EPOCH_STEPS = 134217728 -- the steps of an epoch begin there times it; more than a shard makes in a minute

function F.init()
  pack, parse = struct.pack, struct.unpack
  concat, sort, floor = table.concat, table.sort, math.floor
  byte, sub, char, fmt = string.byte, string.sub, string.char, string.format
  spread, sha1 = unpack, redis.sha1hex
  HEADER_REST = '<BI4I4' .. string.rep('d', #HEADER_NAMES - 3)
  F.init_rows()
  F.init_values()
  RUN = sub(string.match(redis.call('INFO', 'server'), 'run_id:(%x+)'), 1, RUN_BYTES)
  call = redis.call
end

function F.header_of(raw)
  local H = {}
  H.mark, H.format, H.sequence, H.serial = parse(HEADER_FIRST, raw)
  local parts = {parse(HEADER_REST, raw, HEADER_FIRST_BYTES + 1)}
  for i = 1, #HEADER_NAMES do
    H[HEADER_NAMES[i]] = parts[i]
  end
  H.run = sub(raw, -RUN_BYTES)
  return H
end

function F.pack_header(H)
  local parts = {}
  for i = 1, #HEADER_NAMES do
    parts[i] = H[HEADER_NAMES[i]]
  end
  return pack(HEADER_FIRST, H.mark, FORMAT, H.sequence, H.serial) .. pack(HEADER_REST, spread(parts)) .. H.run
end

function F.has_flag(flags, bit)
  return floor(flags / bit) % 2 == 1
end

function F.set_flag(flags, bit, on)
  if F.has_flag(flags, bit) == on then
    return flags
  end
  return on and flags + bit or flags - bit
end

-- Opens a call. keys: the header, then a key that never exists (while a slot moves, that one makes Redis refuse the call
-- before the function runs). args: 1 the versions, the time and the name of the caller, 2 the settings. Returns an error reply
-- if the shard cannot be used.
function F.open(keys, args)
  if not call then
    F.init()
  end
  local raw = call('GET', keys[1])
  if not raw then
    return redis.error_reply('ABSENT there is no such shard')
  end
  if byte(raw, 2) == DROPPED then
    return redis.error_reply('NOSHARD the shard was dropped')
  end
  if byte(raw, 1) ~= 0 then
    return redis.error_reply('INCONSISTENT an earlier call ended half way')
  end
  if byte(raw, 2) ~= FORMAT then
    return redis.error_reply('FORMAT the shard has another format')
  end
  local H = F.header_of(raw)
  local version, epoch, caller, slack, reserve, wall, rest, seen, run = parse(CALLER, args[1])
  if version ~= H.version or epoch < H.epoch then
    return redis.error_reply(fmt('STALE %.0f %.0f', H.version, H.epoch))
  end
  if H.run ~= RUN and (run ~= RUN or epoch == H.epoch) then
    return redis.error_reply(fmt('RESTARTED %.0f %s', H.epoch, RUN))
  end
  local time = call('TIME')
  local store = time[1] * 1000000 + time[2]
  local now = math.max(H.clock, math.min(store, caller + slack))
  S = {
    H = H, tag = sub(keys[1], 1, -2), now = now, wall = wall,
    age = math.max(H.age, math.min(now, wall)), ahead = math.max(now, wall),
    outbox_max = reserve,
    messages = {}, dirty = {}, sessions = {}, later = {}, counts = {}, outbox = {}, rows = {}, reply = {''},
    new_ids = {}, tb = {}, values = {}, signatures = {}, key_sets = {}, set_uses = {}, held = {}, places = {}, groups = {},
    began = false, changed = false, clocked = false,
    caller = sub(args[1], -8), before = {ready = H.m1, arrived = H.arrived, flags = H.flags}, cancels = {}, news = {},
  }
  if F.has_flag(H.flags, TRUSTS_WALL) and S.now - S.age > LIMIT.token_ahead then
    S.ahead = wall -- since a reset, until the clock of the shard agrees with it
  end
  if epoch > H.epoch then
    F.raise(epoch, rest, seen)
  end
  local P = {}
  P.max_run, P.default_lease, P.kept3, P.kept4, P.kept5, P.window, P.records_max, P.quota_messages, P.quota_bytes,
    P.history, P.values_max, P.key_set, P.in_flight, P.strict = parse('<dddddddddddddd', args[2])
  P.exclusive, P.strict = P.in_flight > 0, P.strict == 1
  P.kept = {[3] = P.kept3, [4] = P.kept4, [5] = P.kept5}
  S.P = P
  S.shapes = F.has_flag(H.flags, HAS_SHAPES) and F.read_shapes() or nil
end

-- Takes over a higher epoch. The first one in a life of the process has to be raised for that life, because an earlier life may
-- have lost what it did under any other. It begins a quiet time, because workers could reach nobody for a while. If the shard is behind a step that a caller has seen, work was lost, and it rests before it leases again. Steps
-- go on above all that any caller can have seen.
function F.raise(epoch, rest, seen)
  local H = S.H
  if H.run ~= RUN then
    H.run, H.quiet_until = RUN, S.now + LIMIT.quiet
    if rest > 0 and seen > H.step then
      H.rest_until = S.now + rest
    end
    S.step, S.clocked = epoch * EPOCH_STEPS, true -- a call that only reads tells the step that is stored
  end
  H.epoch = epoch
  S.changed = true
end

-- Whether nothing may expire yet: workers that live have their time to say so.
function F.is_quiet()
  return S.now < S.H.quiet_until
end

-- Whether no message may be leased yet: a lease that was lost may still be in use.
function F.is_resting()
  return S.now < S.H.rest_until
end

-- Stores what the call took before it writes anything else, with the mark.
function F.begin()
  local H = S.H
  if not S.began or S.sequence ~= H.sequence or S.serial ~= H.serial then
    S.began, S.sequence, S.serial = true, H.sequence, H.serial
    call('SETRANGE', S.tag .. 'm', 0, pack(HEADER_FIRST, 1, FORMAT, H.sequence, H.serial))
  end
end

-- A write of the second phase that no index brings about.
function F.write(...)
  S.later[#S.later + 1] = {...}
end

-- Ends a call: writes what is left, then the header, after which nothing can fail. The reply begins with the status of the
-- shard.
function F.finish()
  F.flush()
  F.flush_counts()
  local changes = S.began or S.changed
  if changes then
    if S.clocked then
      S.H.clock, S.H.age = S.now, S.age
    end
    S.H.step = math.max(S.H.step, S.step or 0) + 1
    S.H.mark = 0
  end
  S.reply[1] = F.status()
  if changes then
    F.gather_news(S.reply[1], S.next_event)
    call('SET', S.tag .. 'm', F.pack_header(S.H))
    F.publish_news() -- which never fails
  end
  return S.reply
end

-- The status of the shard: time, step, messages by state, arrived, head, ready since, flags, next event, version, epoch.
function F.status()
  local H, tag = S.H, S.tag
  local is_serving = H.m1 > 0 and not F.is_resting()
  local head = is_serving and call('ZRANGE', tag .. (S.P.exclusive and 'q' or 'p'), 0, 0, 'WITHSCORES') or {}
  local oldest = H.m1 > 0 and call('ZRANGE', tag .. 'a', 0, 0)[1]
  local at = F.next_event()
  S.next_event = at
  return pack('<ddddddddd', S.now, H.step, H.m0, H.m1, H.m2, H.m3, H.m4, H.m5, H.arrived)
    .. pack('<BdBdBBddd', head[2] and 1 or 0, tonumber(head[2] or 0), oldest and 1 or 0, (oldest or 0) * LIMIT.minute, H.flags,
      at and 1 or 0, at and math.max(0, at - S.now) or 0, H.version, H.epoch)
end

-- Whether a sweep has indexes to go on with.
function F.is_unfinished()
  return F.has_flag(S.H.flags, RECHECKING) or F.has_flag(S.H.flags, FILLING)
end

-- The time of the earliest timer: now, if a sweep has indexes to go on with.
function F.next_event()
  local H, tag, at = S.H, S.tag, F.is_unfinished() and S.now or nil
  for _, name in ipairs({'d', 'g', H.sessions > 0 and 'sg' or false}) do
    local first = name and call('ZRANGE', tag .. name, 0, 0, 'WITHSCORES')[2]
    if first then
      first = tonumber(first)
      at = at and math.min(at, first) or first
    end
  end
  if at and F.is_quiet() then
    at = math.max(at, H.quiet_until)
  end
  if F.is_resting() and H.m1 > 0 then
    at = at and math.min(at, H.rest_until) or H.rest_until
  end
  return at
end

-- Refusals: the code of each, then what it says.
local REFUSED = {
  INVALID = 1, NOT_FOUND = 2, WRONG_STATE = 3, VERSION = 4, LEASE_LOST = 5, TOKEN_REUSED = 6, TOKEN_EXPIRED = 7,
  NOT_EMPTY = 8, VALUE_HELD = 9, SESSION_NOT_FOUND = 10, SESSION_ENDED = 11, SEQUENCE_TOO_OLD = 12, TRY_BARRED = 13,
  DELETED = 14, ENQUEUE_BLOCKED = 15, DEQUEUE_BLOCKED = 16, FULL = 17,
}
-- Parts of a command that are checked here; those that Rust checks travel with the command.
local INVALID_PRIORITY, INVALID_TOKEN_TIME, INVALID_SESSION, INVALID_KEY_SETS, INVALID_INVISIBILITY = 1, 2, 3, 4, 5
local FULL_MESSAGES, FULL_BYTES, FULL_ANSWERS, FULL_SESSIONS, FULL_LIMITS = 0, 1, 2, 3, 4

function F.refuse(code, number)
  return pack('<Bd', code, number or 0)
end

-- The reason of a block.
function F.blocked(code, field)
  return pack('<B', code) .. (call('HGET', S.tag .. 'cf', field) or '')
end

-- Adds the answer of one command: its reply, the rows that it applied, the messages of its leases.
function F.answer(reply, messages)
  local out = S.reply
  local rows = concat(S.rows)
  out[#out + 1] = pack('<HH', #S.rows, messages and #messages or 0) .. reply
  if #S.rows > 0 then
    out[#out + 1] = rows
    S.rows = {}
  end
  for i = 1, messages and #messages or 0 do
    local M = messages[i]
    out[#out + 1] = pack('<d', M.seq) .. F.pack_message(M)
    out[#out + 1] = F.static(M)
    out[#out + 1] = F.body(M)
  end
end

-- A whole call of commands that have `width` arguments each. `step` gets the place of the first one and answers the command.
-- A deleted shard refuses all of them.
function F.each(keys, args, width, step)
  local failed = F.open(keys, args)
  if failed then
    return failed
  end
  for i = 3, #args, width do
    if S.H.deleted >= 0 then
      F.answer(F.refuse(REFUSED.DELETED))
    else
      step(i)
    end
  end
  return F.finish()
end
