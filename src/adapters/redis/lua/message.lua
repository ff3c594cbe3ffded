-- Messages: those of NEIGHBOURS sequences lie in one hash, h<number>, each with three fields that end with its place there: h
-- (head, changes), s (static part, as Rust made it) and b (body). A hash for each message would cost 80 bytes more. Those that are
-- finished for good lie elsewhere, see finished.lua.
--
-- The head is a fixed part and optional parts, in the order of their flags. The static part begins with what is read here:
-- flags, fingerprint, place of the id, token time, hash of the routing value, metadata, the id unless it is a UUID, which is its
-- own place. All else in it is Rust's. Only an update changes it, and only its metadata.

local HEAD_FIXED = '<HBHHI5I4I4BBdd'
-- Optional parts, as bits of the head's flags.
local HAS_TTL, HAS_LEASE_DURATION, HAS_HISTORY, HAS_END, HAS_LEASE, HAS_SESSION, HAS_EXPIRED, HAS_SETTLED, HAS_CANCEL,
  HAS_ERROR, HAS_UPDATES, HAS_WINDOW, IS_COUNTED_APART = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096
local STATIC_FIXED_BYTES, STATIC_ID = 25, 10 -- flags, fingerprint, place of the id; where that begins
local STATIC_TOKEN_TIME, STATIC_ROUTING, STATIC_UUID, STATIC_TIME_OF_ID = 1, 2, 4, 8 -- bits of the static part's flags

-- The key of the hash with a message, and its place there.
function F.home_of(seq)
  local place = seq % NEIGHBOURS
  return fmt(S.K.home_key, (seq - place) / NEIGHBOURS), place
end

-- The member of a message in the sorted sets: as ordered as its sequence. A place behind all of them is that of the last one.
function F.member(seq)
  return pack('>I6', seq < SEQUENCES and seq or SEQUENCES - 1)
end

function F.sequence_of(member)
  return (parse('>I6', member))
end

local function read_head(seq)
  local key, place = F.home_of(seq)
  local parts = call('HMGET', key, FIELD_H[place], FIELD_S[place])
  return parts[1] and F.unpack_message(seq, parts[1], parts[2])
end

-- The message of a sequence, with its static part; nil if there is none.
function F.message(seq)
  local M = S.messages[seq]
  if M == nil then
    M = not (S.old and S.old[seq]) and read_head(seq) or F.read_finished(seq) or false
    S.messages[seq] = M
  end
  return M and not M.gone and M or nil
end

-- The same with its body.
function F.whole_message(seq)
  if S.messages[seq] == nil then
    local key, place = F.home_of(seq)
    local parts = call('HMGET', key, FIELD_H[place], FIELD_S[place], FIELD_B[place])
    if parts[1] then
      S.messages[seq] = F.unpack_message(seq, parts[1], parts[2], parts[3] or '')
    end
  end
  return F.message(seq)
end

-- Reads messages before they are asked for, those of one hash by one command. What is not found is looked for later.
function F.read_ahead(sequences, with_bodies)
  local of_hash, hashes = {}, {}
  for i = 1, #sequences do
    local seq = sequences[i]
    if S.messages[seq] == nil then
      local key, place = F.home_of(seq)
      local hash = of_hash[key]
      if not hash then
        hash = {asked = {'HMGET', key}, sequences = {}}
        of_hash[key], hashes[#hashes + 1] = hash, hash
      end
      local asked = hash.asked
      local at = #asked
      asked[at + 1], asked[at + 2], asked[at + 3] = FIELD_H[place], FIELD_S[place], with_bodies and FIELD_B[place] or nil
      hash.sequences[#hash.sequences + 1] = seq
    end
  end
  local width = with_bodies and 3 or 2
  for i = 1, #hashes do
    local parts, known = call(spread(hashes[i].asked)), hashes[i].sequences
    for j = 1, #known do
      local at = (j - 1) * width
      if parts[at + 1] then
        S.messages[known[j]] =
          F.unpack_message(known[j], parts[at + 1], parts[at + 2], with_bodies and (parts[at + 3] or '') or nil)
      end
    end
  end
end

-- The sequences of members of a sorted set, whose messages are read ahead with their bodies.
function F.read_members(members)
  for i = 1, #members do
    members[i] = F.sequence_of(members[i])
  end
  if #members > 1 then
    F.read_ahead(members, true)
  end
  return members
end

function F.body(M)
  if not M.b then
    local key, place = F.home_of(M.seq)
    M.b = call('HGET', key, FIELD_B[place]) or ''
  end
  return M.b
end

local function text(raw, at)
  return parse('<Hc0', raw, at)
end

-- Reads the optional parts of a head, which begin there, and answers where they end.
function F.unpack_options(M, flags, raw, at)
  if flags % 2 >= HAS_TTL then
    M.ttl_at, at = parse('<d', raw, at)
  end
  if flags % 4 >= HAS_LEASE_DURATION then
    M.lease_duration, at = parse('<d', raw, at)
  end
  if flags % 8 >= HAS_HISTORY then
    local first
    M.releases, first, at = parse('<Hd', raw, at)
    M.first_leased_at = first >= 0 and first or nil
  end
  if flags % 16 >= HAS_END then
    M.ended_at, M.delete_at, at = parse('<dd', raw, at)
  end
  if flags % 32 >= HAS_LEASE then
    local epoch, serial, since, expires, bits, after = parse('<I4I5ddB', raw, at)
    local L = {
      epoch = epoch, serial = serial, since = since, expires = expires, cancel = bits % 2 == 1, confirmed = bits >= 2,
    }
    at = after
    if flags % 64 >= HAS_SESSION then
      L.session, L.call = sub(raw, at, at + 31), sub(raw, at + 32, at + 47)
      at = at + 48
    end
    M.lease = L
  end
  if flags < HAS_EXPIRED then
    return at
  end
  if flags % 128 >= HAS_EXPIRED then
    M.expired_epoch, M.expired_serial, at = parse('<I4I5', raw, at)
  end
  if flags % 256 >= HAS_SETTLED then
    local epoch, serial, verb, state, version, after = parse('<I4I5BBI5', raw, at)
    M.settled, at = {epoch = epoch, serial = serial, verb = verb, state = state, version = version}, after
  end
  if flags % 512 >= HAS_CANCEL then
    M.canceled_by, at = parse('<B', raw, at)
    M.canceled_why, at = text(raw, at)
  end
  if flags % 1024 >= HAS_ERROR then
    M.error_signature, at = text(raw, at)
    M.error_text, at = text(raw, at)
  end
  if flags % 2048 >= HAS_UPDATES then
    local count
    count, at = parse('<B', raw, at)
    M.updates = {}
    for i = 1, count do
      local update = {}
      update.fingerprint, update.state, update.version, at = parse('<c8BI5', raw, at)
      update.text, at = text(raw, at)
      M.updates[i] = update
    end
  end
  if flags % 4096 >= HAS_WINDOW then
    M.visible_at, at = parse('<d', raw, at)
  end
  if flags >= IS_COUNTED_APART then
    M.counted_pairs, at = text(raw, at)
  end
  return at
end

-- A message from its head, its static part and its body; the body may be read later.
function F.unpack_message(seq, raw, static, body)
  local flags, states, left, most, version, bytes, epoch, key_set, counted, priority, enqueued_at, at =
    parse(HEAD_FIXED, raw)
  local state = states % 16
  local M = {
    seq = seq, s = static, b = body, state = state, first_state = (states - state) / 16, left = left, max = most,
    version = version, bytes = bytes, epoch = epoch, key_set = key_set, counted = counted, priority = priority,
    enqueued_at = enqueued_at, visible_at = enqueued_at, releases = 0, packed = raw,
  }
  if flags > 0 then
    F.unpack_options(M, flags, raw, at)
  end
  return M
end

local function pack_text(value)
  return pack('<H', #value) .. value
end

local function pack_updates(updates)
  local kept = {pack('<B', #updates)}
  for i = 1, #updates do
    local update = updates[i]
    kept[i + 1] = pack('<c8BI5', update.fingerprint, update.state, update.version) .. pack_text(update.text)
  end
  return concat(kept)
end

-- The flags and the optional parts of a head. is_brief: without the history, the end and the settlement.
function F.pack_options(M, is_brief)
  local flags, options = 0, ''
  if M.ttl_at then
    flags, options = HAS_TTL, pack('<d', M.ttl_at)
  end
  if M.lease_duration then
    flags, options = flags + HAS_LEASE_DURATION, options .. pack('<d', M.lease_duration)
  end
  if not is_brief and (M.releases > 0 or M.first_leased_at) then
    flags, options = flags + HAS_HISTORY, options .. pack('<Hd', M.releases, M.first_leased_at or -1)
  end
  if not is_brief and M.ended_at then
    flags, options = flags + HAS_END, options .. pack('<dd', M.ended_at, M.delete_at)
  end
  local L, settled = M.lease, M.settled
  if L then
    local bits = (L.cancel and 1 or 0) + (L.confirmed and 2 or 0)
    flags, options = flags + HAS_LEASE, options .. pack('<I4I5ddB', L.epoch, L.serial, L.since, L.expires, bits)
    if L.session then
      flags, options = flags + HAS_SESSION, options .. L.session .. L.call
    end
  end
  if M.expired_serial then
    flags, options = flags + HAS_EXPIRED, options .. pack('<I4I5', M.expired_epoch, M.expired_serial)
  end
  if settled and not is_brief then
    flags = flags + HAS_SETTLED
    options = options .. pack('<I4I5BBI5', settled.epoch, settled.serial, settled.verb, settled.state, settled.version)
  end
  if M.canceled_by then
    flags, options = flags + HAS_CANCEL, options .. pack('<B', M.canceled_by) .. pack_text(M.canceled_why or '')
  end
  if M.error_signature then
    flags, options = flags + HAS_ERROR, options .. pack_text(M.error_signature) .. pack_text(M.error_text)
  end
  if M.updates then
    flags, options = flags + HAS_UPDATES, options .. pack_updates(M.updates)
  end
  if M.visible_at ~= M.enqueued_at then
    flags, options = flags + HAS_WINDOW, options .. pack('<d', M.visible_at)
  end
  if M.counted_pairs then
    flags, options = flags + IS_COUNTED_APART, options .. pack_text(M.counted_pairs)
  end
  return flags, options
end

function F.pack_message(M)
  if M.packed then
    return M.packed
  end
  local flags, options = F.pack_options(M)
  local packed = pack(HEAD_FIXED, flags, M.state + 16 * M.first_state, M.left, M.max, M.version, M.bytes, M.epoch, M.key_set,
    M.counted, M.priority, M.enqueued_at) .. options
  M.packed = packed
  return packed
end

function F.fingerprint(M)
  return sub(M.s, 2, 9)
end

function F.id_hash(M)
  return sub(M.s, STATIC_ID, STATIC_FIXED_BYTES)
end

-- The time of the message's token; nil if it has none.
function F.token_time(M)
  local s = M.s
  local flags = byte(s)
  if flags % 2 >= STATIC_TOKEN_TIME then
    return (parse('<d', s, STATIC_FIXED_BYTES + 1))
  elseif flags >= STATIC_TIME_OF_ID then
    return parse('>I6', s, STATIC_ID) * 1000
  end
end

-- Where the metadata begins in the static part, and the hash of the routing value, if the message has one.
local function after_token(s)
  local at, flags = STATIC_FIXED_BYTES + 1, byte(s)
  if flags % 2 >= STATIC_TOKEN_TIME then
    at = at + 8
  end
  if flags % 4 >= STATIC_ROUTING then
    return at + 16, sub(s, at, at + 15)
  end
  return at
end

function F.routing_hash(M)
  if M.routing == nil then
    local _, hash = after_token(M.s)
    M.routing = hash or false
  end
  return M.routing or nil
end

-- The hash and the text of the routing value.
function F.routing(M)
  local s = M.s
  local at, hash = after_token(s)
  local texts = 2 * byte(s, at) + (byte(s) % 8 < STATIC_UUID and 1 or 0) -- the metadata and the id come before it
  at = at + 1
  for _ = 1, texts do
    at = at + 2 + parse('<H', s, at)
  end
  return hash, (text(s, at))
end

-- Packed pairs that begin there, as a table, and where they end.
local function pairs_at(raw, at)
  local pairs_, count, key, value = {}, byte(raw, at), nil, nil
  at = at + 1
  for _ = 1, count do
    key, value, at = parse('<Hc0Hc0', raw, at)
    pairs_[key] = value
  end
  return pairs_, at
end

-- The metadata as a table.
function F.metadata(M)
  if not M.metadata then
    M.metadata = pairs_at(M.s, (after_token(M.s)))
  end
  return M.metadata
end

-- The metadata by which the message is counted, those of its enqueue.
function F.metadata_at_enqueue(M)
  return M.counted_pairs and pairs_at(M.counted_pairs, 1) or F.metadata(M)
end

-- Replaces the metadata. The indexes of its shapes learn those that it had by metadata_before.
function F.replace_metadata(M, packed)
  local s = M.s
  local from = after_token(s)
  local before, to = pairs_at(s, from)
  if M.key_set ~= 0 and not M.counted_pairs then
    M.counted_pairs = sub(s, from, to - 1)
  end
  M.s, M.has_new_static = sub(s, 1, from - 1) .. packed .. sub(s, to), true
  M.metadata_before, M.metadata, M.groups = before, nil, nil
end

-- Pairs as Rust packs them, as a list of key, value.
function F.pairs_of(raw)
  local list, at = {}, 2
  for i = 1, byte(raw) or 0 do
    local key, value
    key, at = text(raw, at)
    value, at = text(raw, at)
    list[i] = {key, value}
  end
  return list
end

function F.matches(M, wanted)
  if #wanted == 0 then
    return true
  end
  local own = F.metadata(M)
  for i = 1, #wanted do
    if own[wanted[i][1]] ~= wanted[i][2] then
      return false
    end
  end
  return true
end

-- The message of a reference: k, epoch, sequence; or i, hash of the id, hash of the routing value if it must have that.
function F.find_ref(ref)
  if byte(ref) == 107 then
    local epoch, seq = parse('<I4d', ref, 2)
    local M = F.message(seq)
    return M and M.epoch == epoch and M or nil
  end
  local M = F.by_id(sub(ref, 2, 17))
  if M and #ref > 17 and F.routing_hash(M) ~= sub(ref, 18) then
    return nil
  end
  return M
end
