-- Ids and tokens: i<bucket> has the sequence of each living message by the place of its id; t<bucket> has the answers to
-- tokens that outlived their messages, by place and time; tb counts the answers of each bucket, those of living messages too.
-- A place is a UUID itself, or the hash of any other text.
--
-- The buckets of ids grow by linear hashing: one more bucket whenever there are more than BUCKET_IDS for each. So they stay
-- small enough for the compact form of hashes. Buckets of tokens are ten minutes of token time, and dropped whole.

local BUCKET_IDS = 32
local HASH_VERSION = 240 -- in the 7th byte of a place
local MOVED_AT_ONCE = 1000 -- a call has some thousand arguments at most, and chosen ids may all lie in one bucket
local BUCKET_MICROS = 600000000

-- The greatest power of two that is not above a number of buckets; of the last number that was asked for.
local of_buckets, power = 1, 1

local function power_of(buckets)
  if buckets ~= of_buckets then
    of_buckets, power = buckets, 1
    while power * 2 <= buckets do
      power = power * 2
    end
  end
  return power
end

-- A number by which places are spread. A hash of a text has a version that no UUID has, and is spread already; UUIDs may be counted
-- or chosen.
local function spread_of(place)
  if byte(place, 7) >= HASH_VERSION then
    return (parse('<I4', place))
  end
  return tonumber(sub(sha1(place), 1, 8), 16)
end

-- The key of the bucket of a hash, as buckets are at the moment.
local function id_key(hash)
  local buckets = S.H.buckets
  local number, low = spread_of(hash), power_of(buckets)
  local bucket = number % (low * 2)
  return fmt(S.K.bucket_key, bucket < buckets and bucket or number % low)
end

-- The living message of an id; nil if there is none.
function F.by_id(hash)
  local ids = S.new_ids
  local seq = ids and ids[hash]
  if seq then
    return F.message(seq)
  end
  local key = id_key(hash)
  S.id_key = key
  seq = (not ids or seq == nil) and call('HGET', key, hash)
  return seq and F.message(tonumber(seq)) or nil
end

local function set_id(hash, seq, change)
  local ids, H = S.new_ids, S.H
  if ids then
    ids[hash] = seq
  else
    S.new_ids = {[hash] = seq}
  end
  H.ids = H.ids + change
end

-- Notes the id of a new message, for which by_id has just looked.
function F.remember_id(hash, seq)
  local keys = S.id_keys
  if keys then
    keys[hash] = S.id_key
  else
    S.id_keys = {[hash] = S.id_key}
  end
  set_id(hash, seq, 1)
end

function F.forget_id(M)
  set_id(F.id_hash(M), false, -1)
end

-- Moves ids to another bucket.
local function move(source, target, moved)
  local gone = {}
  for i = 1, #moved, 2 do
    gone[#gone + 1] = moved[i]
  end
  if #gone > 0 then
    call('HSET', target, spread(moved))
    call('HDEL', source, spread(gone))
  end
end

-- Takes one more bucket and moves to it what belongs there.
local function split()
  local H = S.H
  local last = H.buckets
  local low = power_of(last)
  H.buckets = last + 1
  local source, target = fmt(S.K.bucket_key, last - low), fmt(S.K.bucket_key, last)
  local entries, moved = call('HGETALL', source), {}
  for i = 1, #entries, 2 do
    if spread_of(entries[i]) % (low * 2) == last then
      moved[#moved + 1], moved[#moved + 2] = entries[i], entries[i + 1]
    end
    if #moved == 2 * MOVED_AT_ONCE then
      move(source, target, moved)
      moved = {}
    end
  end
  move(source, target, moved)
end

local function write_ids(ids)
  local H, added, keys = S.H, 0, S.id_keys
  for hash, seq in pairs(ids) do
    if seq then
      call('HSET', keys[hash], hash, seq)
      added = added + 1
    else
      call('HDEL', id_key(hash), hash)
    end
  end
  while added > 0 and H.ids > H.buckets * BUCKET_IDS do
    added = added - 1
    split()
  end
end

local function write_answer_counts()
  for bucket, count in pairs(S.tb) do
    if count.changed then
      if count.number > 0 then
        call('HSET', S.keys.tb, bucket, count.number)
      else
        call('HDEL', S.keys.tb, bucket)
      end
      count.changed = false
    end
  end
end

function F.flush_ids()
  if S.new_ids then
    write_ids(S.new_ids)
    S.new_ids, S.id_keys = false, false
  end
  if S.tb then
    write_answer_counts()
  end
end

local function answers_of(bucket)
  S.tb = S.tb or {}
  local known = S.tb[bucket]
  if not known then
    known = {number = tonumber(call('HGET', S.keys.tb, bucket) or 0), changed = false}
    S.tb[bucket] = known
  end
  return known
end

local function token_key(time)
  return S.tag .. 't' .. fmt('%d', floor(time / BUCKET_MICROS))
end

-- Whether the answer to a token of this time may have been dropped, by this time of the shard.
local function is_too_old(time, age)
  local H = S.H
  return time < age - S.P.window or (H.floor >= 0 and time < H.floor)
end

-- The same by the present time. A token that is refused for it stays refused, also by a server whose clock is behind and after a
-- restart: so the time is stored, unless what is stored refuses it already.
function F.may_be_dropped(time)
  if not is_too_old(time, S.age) then
    return false
  end
  if not is_too_old(time, S.H.age) then
    S.changed, S.clocked = true, true
  end
  return true
end

-- The answer that outlived its message; nil if there is none.
function F.outlived(hash, time)
  local raw = S.H.outlived > 0 and call('HGET', token_key(time), hash .. pack('<d', time))
  if raw then
    local first = {}
    first.fingerprint, first.epoch, first.seq, first.state = parse('<c8I4dB', raw)
    return first
  end
end

local function drop_bucket(bucket)
  local H, tag = S.H, S.tag
  local known = answers_of(bucket)
  H.records = H.records - known.number
  known.number, known.changed = 0, true
  local key = tag .. 't' .. fmt('%d', bucket)
  H.outlived = H.outlived - call('HLEN', key)
  F.write('UNLINK', key)
  H.floor = math.max(H.floor, (bucket + 1) * BUCKET_MICROS)
  local oldest = -1
  local buckets = call('HKEYS', tag .. 'tb')
  for i = 1, #buckets do
    S.tb[tonumber(buckets[i])] = answers_of(tonumber(buckets[i]))
  end
  for number, count in pairs(S.tb) do
    if count.number > 0 and (oldest < 0 or number < oldest) then
      oldest = number
    end
  end
  H.oldest = oldest
  S.changed = true
end

-- Whether one more answer fits, if need be in place of those of older buckets.
function F.has_room(time)
  local H = S.H
  return (H.oldest >= 0 and H.oldest < floor(time / BUCKET_MICROS)) or H.records + 1 <= S.P.records_max
end

-- Counts the answer to a token of a new message, and drops buckets that are over or in the way.
function F.put_answer(time)
  local H, own = S.H, floor(time / BUCKET_MICROS)
  while H.oldest >= 0 do
    local is_over = (H.oldest + 1) * BUCKET_MICROS <= S.age - S.P.window
    local in_the_way = H.records + 1 > S.P.records_max and H.oldest < own
    if not (is_over or in_the_way) then
      break
    end
    drop_bucket(H.oldest)
  end
  local known = answers_of(own)
  known.number, known.changed = known.number + 1, true
  H.records = H.records + 1
  if H.oldest < 0 or own < H.oldest then
    H.oldest = own
  end
end

-- Whether the answer to a message's token is kept. lost_floor and lost_sequence say which answers a reset of the clock lost.
function F.is_tracked(M, time)
  local H = S.H
  local lost = M.seq <= H.lost_sequence and time < H.lost_floor
  return not lost and not (H.floor >= 0 and time < H.floor) and answers_of(floor(time / BUCKET_MICROS)).number > 0
end

-- Keeps the answer of a message that is about to be removed.
function F.detach(M)
  local time = F.token_time(M)
  if time and F.is_tracked(M, time) then
    local answer = pack('<c8I4dB', F.fingerprint(M), M.epoch, M.seq, M.first_state)
    F.write('HSET', token_key(time), F.id_hash(M) .. pack('<d', time), answer)
    S.H.outlived = S.H.outlived + 1
  end
end

-- Refuses tokens of before this time from now on, and drops the buckets that are wholly before it.
function F.raise_floor(time)
  local H = S.H
  H.floor = math.max(H.floor, time)
  while H.oldest >= 0 and (H.oldest + 1) * BUCKET_MICROS <= time do
    drop_bucket(H.oldest)
  end
  S.changed = true
end
