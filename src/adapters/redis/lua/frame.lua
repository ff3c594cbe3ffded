-- The frame of every function: built-ins, the header of the shard, its clock, refusals.
--
-- A call has two phases. First it computes: it reads messages and records into the tables of S and changes them there. Then
-- it writes: F.begin stores the sequences and serials that it took together with a mark, F.finish stores the header without
-- the mark. An error in the first phase leaves nothing; one in the second leaves the mark, and later calls say INCONSISTENT.
--
-- Calls are short, so what they make costs more than what they compute. Tables that most calls do not need are made where they
-- are used first; those that all have are made with all their fields, because a table that grows is made anew each time.
--
-- Globals are closed while a library is loaded, so F.init takes them at the first call.

local F = {}
local S -- the state of the present call
local call, pack, parse, concat, sort, floor, byte, sub, char, fmt, spread, sha1
local RUN -- names the life of this process of the server
local redis_time -- of the present call: seconds and microseconds

-- The header. Its first part is what F.begin writes: the mark, the format, the last sequence, the last serial. At its end is
-- the life of the process that served the shard last.
local HEADER_FIRST = '<BBdd'
local HEADER -- the first part, three small numbers, doubles, the life
local HEADER_NAMES = {
  'mark', 'format', 'sequence', 'serial', 'flags', 'number', 'epoch', 'version', 'clock', 'age', 'step', 'arrived', 'moved', 'floor', 'position',
  'm0', 'b0', 'm1', 'b1', 'm2', 'b2', 'm3', 'b3', 'm4', 'b4', 'm5', 'b5',
  'ids', 'buckets', 'records', 'outlived', 'oldest', 'sessions', 'deleted', 'lost_floor', 'lost_sequence',
  'quiet_until', 'rest_until', 'run',
}
local FORMAT = 4
local DROPPED = 255 -- in place of the format: the tombstone of a dropped shard
local ENQUEUE_BLOCKED, DEQUEUE_BLOCKED, TRUSTS_WALL, RECHECKING, HAS_SHAPES, FILLING, DROPPING, SHORTENING =
  1, 2, 4, 8, 16, 32, 64, 128 -- flags
local NONE = 255 -- in place of a state
local NO_STATE = 6 -- the state of a message that does not exist yet, as a cause of rows
local CLOSED, REPLACED, EXPIRED, ALIVE = 0, 1, 2, 255 -- how a session ended
local COMPLETE, MORE, PARTIAL = 0, 1, 2 -- whether a reply is complete
local PAGE, PAGE_HEAD = 1024, 4 -- sequences of a page of states, and the bytes before them
local MEMBER_BYTES, SEQUENCES = 6, 2 ^ 48 -- of a sequence in a sorted set; a set takes 8 bytes less for it than for 7 bytes
local NEIGHBOURS = 8 -- sequences whose messages lie in one hash
local FIELD_H, FIELD_S, FIELD_B = {}, {}, {} -- the fields of a message, by its place in the hash
for place = 0, NEIGHBOURS - 1 do
  FIELD_H[place], FIELD_S[place], FIELD_B[place] = 'h' .. place, 's' .. place, 'b' .. place
end
local RUN_BYTES = 16
local FIRST_OF = {p = {seq = 'p_seq', arrived = 'p_arrived'}, q = {seq = 'q_seq', arrived = 'q_arrived'}} -- in heads
local DIGITS = {[-1] = '-1', [0] = '0', '1', '2', '3', '4', '5', '6'} -- what Redis would format if it were a number
local CALLER = '<ddddddddc16' -- version, epoch, time, slack, entries of the outbox, wall time, rest, seen step, life
local EPOCH_STEPS = 134217728 -- the steps of an epoch begin there times it; more than a shard makes in a minute

function F.init()
  pack, parse = struct.pack, struct.unpack
  concat, sort, floor = table.concat, table.sort, math.floor
  byte, sub, char, fmt = string.byte, string.sub, string.char, string.format
  spread, sha1 = unpack, redis.sha1hex
  HEADER = HEADER_FIRST .. 'BI4I4' .. string.rep('d', #HEADER_NAMES - 8) .. 'c' .. RUN_BYTES
  F.init_rows()
  F.init_values()
  RUN = sub(string.match(redis.call('INFO', 'server'), 'run_id:(%x+)'), 1, RUN_BYTES)
  call = redis.call
end

function F.header_of(raw)
  local H, parts = {}, {parse(HEADER, raw)}
  for i = 1, #HEADER_NAMES do
    H[HEADER_NAMES[i]] = parts[i]
  end
  return H
end

function F.pack_header(H)
  return pack(HEADER, H.mark, FORMAT, H.sequence, H.serial, H.flags, H.number, H.epoch, H.version, H.clock, H.age, H.step,
    H.arrived, H.moved, H.floor, H.position, H.m0, H.b0, H.m1, H.b1, H.m2, H.b2, H.m3, H.b3, H.m4, H.b4, H.m5, H.b5, H.ids,
    H.buckets, H.records, H.outlived, H.oldest, H.sessions, H.deleted, H.lost_floor, H.lost_sequence, H.quiet_until,
    H.rest_until, H.run)
end

function F.has_flag(flags, bit)
  return flags % (2 * bit) >= bit
end

function F.set_flag(flags, bit, on)
  if F.has_flag(flags, bit) == on then
    return flags
  end
  return on and flags + bit or flags - bit
end

-- What the last call of a shard left: its header, stored and as a table; the first scores of the indexes that status and timers
-- need; the declared shapes; the timer that other servers were told and until when that is stored. Every call that writes anything writes the header
-- too, with a higher step. So all of it holds for as long as the stored header is the same, whoever wrote in between.
--
-- heads has the first score of p, a, d, g, sg and q: false if the index is empty, nil if it has to be read. Who writes to one of
-- them says so: F.index_add, F.index_remove, or S.heads[name] = nil; for p F.enter_pending in place of F.index_add. Of p and q it
-- has the first message too: its sequence, and when it arrived, nil if it has to be read.
-- In two generations: once the younger one is full, it takes the place of the other. So a shard that is used now and then is not
-- forgotten together with all others.
local KNOWN, KNOWN_BEFORE, KNOWN_COUNT, KNOWN_MAX = {}, {}, 0, 256

-- The keys of a shard by what follows its tag, which is at 1.
local KEYS = {__index = function(keys, name)
  local key = keys[1] .. name
  keys[name] = key
  return key
end}

-- The table of S, which calls use in turn: F.open sets every field that any of them uses.
local OF_CALLS = {touched = 0}

local function known_of(key)
  local K = KNOWN[key]
  if not K then
    if KNOWN_COUNT == KNOWN_MAX then
      KNOWN, KNOWN_BEFORE, KNOWN_COUNT = {}, KNOWN, 0
    end
    KNOWN_COUNT = KNOWN_COUNT + 1
    K = KNOWN_BEFORE[key]
    if K then
      KNOWN[key] = K
      return K
    end
    local tag = sub(key, 1, -2)
    K = {tag = tag, keys = setmetatable({tag}, KEYS), home_key = tag .. 'h%d', bucket_key = tag .. 'i%d', page_key = tag .. 'st%d',
      finished_key = tag .. 'fm%d', shape_key = tag .. 'z%d', raw = false, H = false, heads = false,
      shapes = false, told = false, told_until = false}
    KNOWN[key] = K
  end
  return K
end

-- Forgets what is known of a shard, but for the names of its keys.
function F.forget_known(key)
  local K = known_of(key)
  K.raw, K.H, K.heads, K.shapes = false, false, false, false
  return K
end

-- The settings by their packed form. Calls share them, so nobody changes them: F.change_settings makes a copy.
local SETTINGS, SETTINGS_COUNT = {}, 0

local function settings_of(raw)
  local P = SETTINGS[raw]
  if not P then
    P = {}
    P.max_run, P.default_lease, P.kept3, P.kept4, P.kept5, P.window, P.records_max, P.quota_messages, P.quota_bytes,
      P.history, P.values_max, P.key_set, P.in_flight, P.strict, P.reuses_ids = parse('<ddddddddddddddd', raw)
    P.exclusive, P.strict, P.reuses_ids = P.in_flight > 0, P.strict == 1, P.reuses_ids == 1
    P.kept = {[3] = P.kept3, [4] = P.kept4, [5] = P.kept5}
    if SETTINGS_COUNT == KNOWN_MAX then
      SETTINGS, SETTINGS_COUNT = {}, 0
    end
    SETTINGS[raw], SETTINGS_COUNT = P, SETTINGS_COUNT + 1
  end
  return P
end

function F.change_settings(name, value)
  local P = {}
  for of, known in pairs(S.P) do
    P[of] = known
  end
  P[name] = value
  S.P = P
end

-- Why a shard with this header cannot be used; nil if it can.
local function unusable(raw)
  if not raw then
    return redis.error_reply('ABSENT there is no such shard')
  elseif byte(raw, 2) == DROPPED then
    return redis.error_reply('NOSHARD the shard was dropped')
  elseif byte(raw, 1) ~= 0 then
    return redis.error_reply('INCONSISTENT an earlier call ended half way')
  elseif byte(raw, 2) ~= FORMAT then
    return redis.error_reply('FORMAT the shard has another format')
  end
end

-- Sets the fields that a call begins without.
local function forget_last(s)
  if s.touched > 0 then
    F.forget_counts() -- of a call that failed
  end
  s.began = false; s.changed = false; s.clocked = false; s.step = false; s.sequence = false; s.serial = false
  s.next_event = nil
  s.dirty = false; s.later = false; s.rows = false; s.outbox = false; s.cancels = false; s.worker = nil
  s.all_messages = false; s.all_bytes = false; s.id_key = false; s.id_keys = false
  s.new_ids = false; s.tb = false; s.sessions = false; s.old = false; s.old_pages = false; s.pages = false
  s.held = false; s.places = false; s.groups = false; s.has_lanes = false; s.has_groups = false; s.shapes = nil
  s.values = false; s.own_values = false; s.key_sets = false; s.set_uses = false
  s.signatures = false; s.signatures_own = false; s.signatures_new = false
end

-- Opens a call. keys: the header, then a key that never exists (while a slot moves, that one makes Redis refuse the call
-- before the function runs). args: 1 the versions, the time and the name of the caller, 2 the settings. Returns an error reply
-- if the shard cannot be used.
function F.open(keys, args)
  if not call then
    F.init()
  end
  local raw, K = call('GET', keys[1]), known_of(keys[1])
  if not raw or K.raw ~= raw then
    local failed = unusable(raw)
    if failed then
      return failed
    end
    K.H, K.heads, K.shapes, K.told = false, {}, false, false
  end
  local H = K.H or F.header_of(raw)
  K.raw, K.H = false, false -- an error must not leave what the call has changed
  local version, epoch, caller, slack, reserve, wall, rest, seen, run = parse(CALLER, args[1])
  if version ~= H.version or epoch < H.epoch then
    return redis.error_reply(fmt('STALE %d %d', H.version, H.epoch))
  end
  if H.run ~= RUN and (run ~= RUN or epoch == H.epoch) then
    return redis.error_reply(fmt('RESTARTED %.0f %d %s', H.step, H.epoch, RUN))
  end
  local store, now, age = redis_time[1] * 1000000 + redis_time[2], caller + slack, H.age
  now = store < now and store or now
  now = now < H.clock and H.clock or now
  local latest = now < wall and now or wall
  local s = OF_CALLS
  S = s
  s.H, s.K, s.tag, s.keys, s.heads, s.raw = H, K, K.tag, K.keys, K.heads, raw
  s.P, s.args, s.outbox_max = settings_of(args[2]), args, reserve
  s.now, s.wall, s.store, s.age, s.ahead = now, wall, store, latest > age and latest or age, now > wall and now or wall
  s.ready_before, s.arrived_before, s.flags_before = H.m1, H.arrived, H.flags
  s.messages, s.reply = {}, {'', nil, nil, nil}
  forget_last(s)
  if H.flags >= TRUSTS_WALL then
    if F.has_flag(H.flags, TRUSTS_WALL) and now - s.age > LIMIT.token_ahead then
      s.ahead = wall -- since a reset, until the clock of the shard agrees with it
    end
    s.shapes = F.has_flag(H.flags, HAS_SHAPES) and (K.shapes or F.read_shapes()) or nil
  end
  if epoch > H.epoch then
    F.raise(epoch, rest, seen)
  end
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
  local sequence, serial = H.sequence, H.serial
  if not S.began or S.sequence ~= sequence or S.serial ~= serial then
    S.began, S.sequence, S.serial = true, sequence, serial
    call('SETRANGE', S.keys.m, '0', pack(HEADER_FIRST, 1, FORMAT, sequence, serial))
  end
end

-- A write of the second phase that no index brings about.
function F.write(...)
  local later = S.later
  if not later then
    later = {}
    S.later = later
  end
  later[#later + 1] = {...}
end

-- The first score of an index; false if it is empty.
function F.head_of(name)
  local at = S.heads[name]
  if at == nil then
    local first = call('ZRANGE', S.keys[name], '0', '0', 'WITHSCORES')
    at = first[2] and tonumber(first[2]) or false
    S.heads[name] = at
    local of_message = FIRST_OF[name]
    if at and of_message then
      S.heads[of_message.seq], S.heads[of_message.arrived] = F.sequence_of(first[1]), nil
    end
  end
  return at
end

-- When the first message of an index of pending ones arrived.
local function head_arrived(name)
  local heads, of_message = S.heads, FIRST_OF[name]
  local at = heads[of_message.arrived]
  if not at then
    local M = F.message(heads[of_message.seq])
    at = M and M.enqueued_at or S.now
    heads[of_message.arrived] = at
  end
  return at
end

-- Says that p has a message that it did not have at this priority.
function F.enter_pending(M)
  local heads, of_message = S.heads, FIRST_OF.p
  local first = heads.p
  if first == false or first and (M.priority < first or M.priority == first and M.seq <= heads[of_message.seq]) then
    heads.p, heads[of_message.seq], heads[of_message.arrived] = M.priority, M.seq, M.enqueued_at
  end
end

-- Says that an index has a new entry, or one of a lower score than before.
function F.index_add(name, score)
  local heads = S.heads
  local first = heads[name]
  if first == false or first and score < first then
    heads[name] = score
  end
end

-- Says that an index has lost the entry of this score.
function F.index_remove(name, score)
  if S.heads[name] == score then
    S.heads[name] = nil
  end
end

-- Ends a call: writes what is left, then the header, after which nothing can fail. The reply begins with the status of the
-- shard.
function F.finish()
  F.flush()
  F.flush_counts()
  local changes = S.began or S.changed
  local H, K, reply = S.H, S.K, S.reply
  if changes then
    if S.clocked then
      H.clock, H.age = S.now, S.age
    end
    local step = S.step
    H.step = (step and step > H.step and step or H.step) + 1
    H.mark = 0
  end
  local status = F.status()
  reply[1] = status
  if changes then
    local news = F.gather_news(status, S.next_event)
    local stored = F.pack_header(H)
    call('SET', S.keys.m, stored)
    K.raw, K.H, K.heads, K.shapes = stored, H, S.heads, S.shapes or false
    if news then
      F.publish_news(news) -- which never fails
    end
  else
    K.raw, K.H = S.raw, H -- whatever changes the header also says that it changes something
  end
  return reply
end

-- The status of the shard: time, step, messages by state, arrived, head, ready since, flags, next event (0 none, 1 one, 2 the end
-- of a retention), version, epoch, when the head arrived.
function F.status()
  local H, now = S.H, S.now
  local ready = H.m1
  local pending = S.P.exclusive and 'q' or 'p'
  local head = ready > 0 and now >= H.rest_until and F.head_of(pending)
  local oldest, at, only_retention = ready > 0 and F.head_of('a'), F.next_event()
  S.next_event = at
  return pack('<dddddddddBdBdBBdddd', now, H.step, H.m0, ready, H.m2, H.m3, H.m4, H.m5, H.arrived, head and 1 or 0, head or 0,
    oldest and 1 or 0, (oldest or 0) * LIMIT.minute, H.flags, only_retention and 2 or at and 1 or 0, at and at > now and at - now or 0,
    H.version, H.epoch, head and head_arrived(pending) or 0)
end

-- Whether a sweep has indexes or retentions to go on with.
function F.is_unfinished()
  local flags = S.H.flags
  return flags >= RECHECKING
    and (F.has_flag(flags, RECHECKING) or F.has_flag(flags, FILLING) or F.has_flag(flags, SHORTENING))
end

-- The time of the earliest timer: now, if a sweep has indexes or retentions to go on with. Then whether that is only the end of a retention.
function F.next_event()
  local H, now, at = S.H, S.now, F.head_of('d')
  local first, gone, forgotten = at, F.head_of('g'), H.sessions > 0 and F.head_of('sg')
  at = (not at or gone and gone < at) and gone or at
  at = (not at or forgotten and forgotten < at) and forgotten or at
  at = F.is_unfinished() and not (at and at < now) and now or at
  if at and now < H.quiet_until and at < H.quiet_until then
    at = H.quiet_until
  end
  if now < H.rest_until and H.m1 > 0 and not (at and at < H.rest_until) then
    at = H.rest_until
  end
  return at or nil, gone and at == gone and not (first and first <= at)
end

-- Refusals: the code of each, then what it says.
local REFUSED = {
  INVALID = 1, NOT_FOUND = 2, WRONG_STATE = 3, VERSION = 4, LEASE_LOST = 5, TOKEN_REUSED = 6, TOKEN_EXPIRED = 7,
  NOT_EMPTY = 8, VALUE_HELD = 9, SESSION_NOT_FOUND = 10, SESSION_ENDED = 11, SEQUENCE_TOO_OLD = 12, TRY_BARRED = 13,
  DELETED = 14, ENQUEUE_BLOCKED = 15, DEQUEUE_BLOCKED = 16, FULL = 17,
}
-- Parts of a command that are checked here; those that Rust checks travel with the command.
local INVALID_PRIORITY, INVALID_TOKEN_TIME, INVALID_SESSION, INVALID_KEY_SETS, INVALID_INVISIBILITY,
  INVALID_EXCLUSIVITY_VALUE = 1, 2, 3, 4, 5, 6
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
  local out, rows = S.reply, S.rows
  local count, at = rows and #rows or 0, #out + 1
  out[at] = pack('<HH', count, messages and #messages or 0) .. reply
  if count > 0 then
    at = at + 1
    out[at] = count == 1 and rows[1] or concat(rows)
    S.rows = false
  end
  for i = 1, messages and #messages or 0 do
    local M = messages[i]
    out[at + 1], out[at + 2], out[at + 3] = pack('<d', M.seq) .. F.pack_message(M), M.s, F.body(M)
    at = at + 3
  end
end

-- A whole call of commands that have `width` arguments each. `step` gets the arguments and the place of the first one of a
-- command, and answers it. If it answered neighbours too, it returns the place of the last. A deleted shard refuses all of them.
function F.each(keys, args, width, step)
  local failed = F.open(keys, args)
  if failed then
    return failed
  end
  local i = 3
  while i <= #args do
    local last
    if S.H.deleted >= 0 then
      F.answer(F.refuse(REFUSED.DELETED))
    else
      last = step(args, i)
    end
    i = (last or i) + width
  end
  return F.finish()
end
