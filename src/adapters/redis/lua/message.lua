-- Messages: the hash h<sequence> with the fields h (head, changes), s (static part, as Rust made it) and b (body). Those that
-- are finished for good lie elsewhere, see finished.lua.
--
-- The head is a fixed part and optional parts, in the order of their flags. The static part begins with what is read here:
-- flags, fingerprint, hash of the id, token time, hash of the routing value, metadata. All else in it is Rust's.

local HEAD_FIXED = '<HBHHI5I4I4BBddd'
-- Optional parts, as bits of the head's flags.
local HAS_TTL, HAS_LEASE_DURATION, HAS_HISTORY, HAS_END, HAS_LEASE, HAS_SESSION, HAS_EXPIRED, HAS_SETTLED, HAS_CANCEL,
  HAS_ERROR, HAS_UPDATES = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024
local STATIC_FIXED_BYTES = 25 -- flags, fingerprint, hash of the id
local STATIC_TOKEN_TIME, STATIC_ROUTING = 1, 2 -- bits of the static part's flags

function F.key_of(seq)
  return S.tag .. 'h' .. fmt('%.0f', seq)
end

-- The member of a message in the sorted sets: as ordered as its sequence.
function F.member(seq)
  return fmt('%013x', seq)
end

function F.sequence_of(member)
  return tonumber(sub(member, 1, 13), 16)
end

-- The message of a sequence; nil if there is none.
function F.message(seq)
  local M = S.messages[seq]
  if M == nil then
    local raw, static = call('HGET', F.key_of(seq), 'h'), nil
    if not raw then
      raw, static = F.read_finished(seq)
    end
    M = raw and F.unpack_message(seq, raw) or false
    if static then
      M.s, M.b = static, ''
    end
    S.messages[seq] = M
  end
  return M and not M.gone and M or nil
end

-- The same of several, with one read each for head, static part and body.
function F.whole_message(seq)
  if S.messages[seq] == nil then
    local parts = call('HMGET', F.key_of(seq), 'h', 's', 'b')
    if parts[1] then
      local M = F.unpack_message(seq, parts[1])
      M.s, M.b = parts[2], parts[3] or ''
      S.messages[seq] = M
    end
  end
  return F.message(seq)
end

function F.static(M)
  M.s = M.s or call('HGET', F.key_of(M.seq), 's')
  return M.s
end

function F.body(M)
  M.b = M.b or call('HGET', F.key_of(M.seq), 'b') or ''
  return M.b
end

local function text(raw, at)
  local size = parse('<H', raw, at)
  return sub(raw, at + 2, at + 1 + size), at + 2 + size
end

function F.unpack_message(seq, raw)
  local M = {seq = seq, releases = 0}
  local flags, states, at
  flags, states, M.left, M.max, M.version, M.bytes, M.epoch, M.key_set, M.counted, M.priority, M.enqueued_at, M.visible_at,
    at = parse(HEAD_FIXED, raw)
  M.state, M.first_state = states % 16, floor(states / 16)
  local has = F.has_flag
  if has(flags, HAS_TTL) then
    M.ttl_at, at = parse('<d', raw, at)
  end
  if has(flags, HAS_LEASE_DURATION) then
    M.lease_duration, at = parse('<d', raw, at)
  end
  if has(flags, HAS_HISTORY) then
    M.releases, M.first_leased_at, at = parse('<Hd', raw, at)
    M.first_leased_at = M.first_leased_at >= 0 and M.first_leased_at or nil
  end
  if has(flags, HAS_END) then
    M.ended_at, M.delete_at, at = parse('<dd', raw, at)
  end
  if has(flags, HAS_LEASE) then
    local L = {}
    L.epoch, L.serial, L.since, L.expires, L.bits, at = parse('<I4I5ddB', raw, at)
    L.cancel, L.confirmed, L.bits = L.bits % 2 == 1, L.bits >= 2, nil
    if has(flags, HAS_SESSION) then
      L.session, L.call = sub(raw, at, at + 31), sub(raw, at + 32, at + 47)
      at = at + 48
    end
    M.lease = L
  end
  if has(flags, HAS_EXPIRED) then
    M.expired_epoch, M.expired_serial, at = parse('<I4I5', raw, at)
  end
  if has(flags, HAS_SETTLED) then
    local settled = {}
    settled.epoch, settled.serial, settled.verb, settled.state, settled.version, at = parse('<I4I5BBI5', raw, at)
    M.settled = settled
  end
  if has(flags, HAS_CANCEL) then
    M.canceled_by, at = parse('<B', raw, at)
    M.canceled_why, at = text(raw, at)
  end
  if has(flags, HAS_ERROR) then
    M.error_signature, at = text(raw, at)
    M.error_text, at = text(raw, at)
  end
  if has(flags, HAS_UPDATES) then
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
  return M
end

local function pack_text(value)
  return pack('<H', #value) .. value
end

function F.pack_message(M)
  if M.packed then
    return M.packed
  end
  local flags, parts = 0, {''}
  local function add(flag, part)
    flags = flags + flag
    parts[#parts + 1] = part
  end
  if M.ttl_at then
    add(HAS_TTL, pack('<d', M.ttl_at))
  end
  if M.lease_duration then
    add(HAS_LEASE_DURATION, pack('<d', M.lease_duration))
  end
  if M.releases > 0 or M.first_leased_at then
    add(HAS_HISTORY, pack('<Hd', M.releases, M.first_leased_at or -1))
  end
  if M.ended_at then
    add(HAS_END, pack('<dd', M.ended_at, M.delete_at))
  end
  local L = M.lease
  if L then
    add(HAS_LEASE, pack('<I4I5ddB', L.epoch, L.serial, L.since, L.expires, (L.cancel and 1 or 0) + (L.confirmed and 2 or 0)))
    if L.session then
      add(HAS_SESSION, L.session .. L.call)
    end
  end
  if M.expired_serial then
    add(HAS_EXPIRED, pack('<I4I5', M.expired_epoch, M.expired_serial))
  end
  local settled = M.settled
  if settled then
    add(HAS_SETTLED, pack('<I4I5BBI5', settled.epoch, settled.serial, settled.verb, settled.state, settled.version))
  end
  if M.canceled_by then
    add(HAS_CANCEL, pack('<B', M.canceled_by) .. pack_text(M.canceled_why or ''))
  end
  if M.error_signature then
    add(HAS_ERROR, pack_text(M.error_signature) .. pack_text(M.error_text))
  end
  if M.updates then
    local kept = {pack('<B', #M.updates)}
    for i = 1, #M.updates do
      local update = M.updates[i]
      kept[i + 1] = pack('<c8BI5', update.fingerprint, update.state, update.version) .. pack_text(update.text)
    end
    add(HAS_UPDATES, concat(kept))
  end
  parts[1] = pack(HEAD_FIXED, flags, M.state + 16 * M.first_state, M.left, M.max, M.version, M.bytes, M.epoch, M.key_set,
    M.counted, M.priority, M.enqueued_at, M.visible_at)
  M.packed = concat(parts)
  return M.packed
end

function F.fingerprint(M)
  return sub(F.static(M), 2, 9)
end

function F.id_hash(M)
  return sub(F.static(M), 10, 25)
end

-- The time of the message's token; nil if it has none.
function F.token_time(M)
  local s = F.static(M)
  if F.has_flag(byte(s), STATIC_TOKEN_TIME) then
    return (parse('<d', s, STATIC_FIXED_BYTES + 1))
  end
end

-- Where the metadata begins in the static part, and the hash of the routing value, if the message has one.
local function after_token(s)
  local at = STATIC_FIXED_BYTES + 1
  if F.has_flag(byte(s), STATIC_TOKEN_TIME) then
    at = at + 8
  end
  if F.has_flag(byte(s), STATIC_ROUTING) then
    return at + 16, sub(s, at, at + 15)
  end
  return at
end

function F.routing_hash(M)
  if M.routing == nil then
    local _, hash = after_token(F.static(M))
    M.routing = hash or false
  end
  return M.routing or nil
end

-- The hash and the text of the routing value.
function F.routing(M)
  local s = F.static(M)
  local at, hash = after_token(s)
  local texts = 2 * byte(s, at) + 1 -- the metadata and the id come before it
  at = at + 1
  for _ = 1, texts do
    at = at + 2 + parse('<H', s, at)
  end
  return hash, (text(s, at))
end

-- The metadata as a table.
function F.metadata(M)
  if not M.metadata then
    local s, pairs_ = F.static(M), {}
    local at = after_token(s)
    local count = byte(s, at)
    at = at + 1
    for _ = 1, count do
      local key, value
      key, at = text(s, at)
      value, at = text(s, at)
      pairs_[key] = value
    end
    M.metadata = pairs_
  end
  return M.metadata
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
