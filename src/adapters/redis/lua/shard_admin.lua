-- new: creates a shard. cfg: its settings, deletion. del: removes the data of a deleted or dropped shard, some
-- messages at a time.
--
-- new. keys: header, a key that never exists. args: 1 number, epoch, version, blocks; 2 settings as Rust stores them; 3 counted
-- keys; 4 and 5 reasons of the blocks; 6 shapes. Reply: 1 created, 0 it is there already; DROPPED if it was there once. The header comes
-- last: what a creation that failed left behind is no shard, and the next one begins anew. O(1).
-- cfg. args: 1 versions and time, 2 settings in force, 3 request, blocks, what changes, limit of values; then for new settings
-- their version, they as Rust stores them, counted keys, reasons of the blocks, shapes; for the limit of a value its hash. Reply: the
-- status, then the answer. O(1), and O(sets) for new counted keys.
-- del. args: 1 what: 0 drop the shard, 1 remove what a deletion left. Reply: 1 done, 0 call again. A drop first says so in the
-- header, so that it only goes on from where an error ended it. It looks at a page of 1,024 sequences a call and removes 256
-- messages and the rest of their last hash. A deletion reads each message, because answers to tokens stay, so it removes 64.

local CONFIG_REQUEST = '<BBBBd'
local DELETE, RESET, VALUE_LIMIT, DROP_SHAPES = 1, 2, 3, 4 -- 0: new settings
local CHANGES_KIND, RAISES_LIMIT, HAS_LIMIT, SHORTENS = 1, 2, 4, 8 -- what changes
local PAGE_KEYS = 256 -- keys without an index of their own that one call of del removes
local DROPPED_AT_ONCE = 256 -- messages without answers to keep that one call of del removes

-- Notes which blocks there are, and the reason of each.
local function set_blocks(H, blocks, reasons)
  for i, of in ipairs({{ENQUEUE_BLOCKED, 'enqueue_blocked'}, {DEQUEUE_BLOCKED, 'dequeue_blocked'}}) do
    local is_on = F.has_flag(blocks, of[1])
    H.flags = F.set_flag(H.flags, of[1], is_on)
    if is_on then
      F.write('HSET', S.tag .. 'cf', of[2], reasons[i])
    else
      F.write('HDEL', S.tag .. 'cf', of[2])
    end
  end
end

function F.new(keys, args)
  if not call then
    F.init()
  end
  local raw = call('GET', keys[1])
  if raw then
    return byte(raw, 2) == DROPPED and redis.error_reply('DROPPED the shard was dropped') or 0
  end
  local H = {mark = 0, sequence = 0, serial = 0}
  for i = 1, #HEADER_NAMES do
    H[HEADER_NAMES[i]] = 0
  end
  local blocks
  H.number, H.epoch, H.version, blocks = parse('<dddB', args[1])
  H.buckets, H.clock, H.age, H.moved, H.floor, H.oldest, H.deleted = 1, 0, 0, -1, -1, -1, -1
  H.run = RUN
  S = {H = H, tag = sub(keys[1], 1, -2), heads = {}}
  call('UNLINK', S.tag .. 'cf', S.tag .. 'kd', S.tag .. 'ks')
  local set = F.declare_keys(args[3])
  F.declare_shapes(H, args[6], false, false)
  set_blocks(H, blocks, {args[4], args[5]})
  for i = 1, S.later and #S.later or 0 do
    call(spread(S.later[i]))
  end
  call('HSET', S.tag .. 'cf', 'settings', args[2], 'key_set', fmt('%d', set))
  call('SET', keys[1], F.pack_header(H))
  return 1
end

local function count_messages(H)
  return H.m0 + H.m1 + H.m2 + H.m3 + H.m4 + H.m5
end

-- Servers push the settings of their catalog in any order, so an older version must not undo a newer one.
local function configure(args, blocks, bad, what, in_flight)
  local H, version = S.H, parse('<d', args[4])
  local changes_kind = F.has_flag(what, CHANGES_KIND)
  if version <= H.version then
    return pack('<B', 0)
  end
  if bad ~= 0 then
    return F.refuse(REFUSED.INVALID)
  elseif changes_kind and count_messages(H) > 0 then
    return F.refuse(REFUSED.NOT_EMPTY)
  end
  local set = F.declare_keys(args[6])
  if not set then
    S.later = false
    return F.refuse(REFUSED.INVALID, INVALID_KEY_SETS)
  end
  -- A token refused for its age was promised never to be applied: a longer window must not accept it again.
  F.raise_floor(S.age - S.P.window)
  H.version = version
  F.write('HSET', S.tag .. 'cf', 'settings', args[5], 'key_set', fmt('%d', set))
  set_blocks(H, blocks, {args[7], args[8]})
  S.changed = true
  F.change_settings('exclusive', in_flight > 0) -- for the status; without messages the rest of the kind matters to no index
  if changes_kind then
    H.flags = F.set_flag(H.flags, RECHECKING, false)
    F.write('UNLINK', S.tag .. 'vl')
    F.write('HDEL', S.tag .. 'cf', 'recheck')
  end
  if F.has_flag(what, SHORTENS) then
    H.flags = F.set_flag(H.flags, SHORTENING, H.m3 + H.m4 + H.m5 > 0)
    F.write('HSET', S.tag .. 'cf', 'shortened', '0')
  end
  F.declare_shapes(H, args[9], count_messages(H) > 0, changes_kind)
  if in_flight > 0 and not changes_kind then
    F.set_limit(in_flight, F.has_flag(what, RAISES_LIMIT))
  end
  return pack('<B', 0)
end

local function limit_value(value, bad, what, limit)
  if bad ~= 0 then
    return F.refuse(REFUSED.INVALID)
  end
  S.changed = true
  return F.set_value_limit(value, F.has_flag(what, HAS_LIMIT) and limit or nil) or pack('<B', 0)
end

local function delete()
  local H = S.H
  if H.deleted < 0 then
    H.deleted = count_messages(H)
    for state = 0, 5 do
      H['m' .. state], H['b' .. state] = 0, 0
    end
    H.sessions = 0
    -- The indexes go at once, in constant time; messages and answers go by del.
    local gone = {'UNLINK'}
    for _, name in ipairs({'p', 'd', 'g', 'a', 'ac', 'sg', 'l', 'q', 'r', 'b', 'vl', 'n'}) do
      gone[#gone + 1] = S.tag .. name
    end
    F.write(spread(gone))
    S.heads = {}
    H.flags = F.set_flag(F.set_flag(H.flags, RECHECKING, false), SHORTENING, false)
    F.abandon_shapes(H)
    S.changed = true
  end
  return pack('<Bd', 0, H.deleted)
end

-- Judges the age of tokens by wall time again, if it was judged by a time more than a minute ahead. Replies the time from
-- which tokens are accepted.
local function reset()
  local H = S.H
  local earlier = math.min(S.now, S.wall)
  if H.age - earlier <= LIMIT.token_ahead and H.floor - earlier <= LIMIT.token_ahead then
    return pack('<BBd', 0, 0, 0)
  end
  local from = earlier + LIMIT.token_ahead
  if H.floor > from then
    H.lost_floor, H.lost_sequence = math.max(H.lost_floor, H.floor), H.sequence
  end
  F.raise_floor(from)
  H.floor, H.age, S.age = from, earlier, earlier
  H.flags = F.set_flag(H.flags, TRUSTS_WALL, true)
  return pack('<BBd', 0, 1, from)
end

function F.cfg(keys, args)
  local failed = F.open(keys, args)
  if failed then
    return failed
  end
  local kind, blocks, bad, what, limit = parse(CONFIG_REQUEST, args[3])
  if kind == DELETE then
    F.answer(delete())
  elseif kind == RESET then
    F.answer(reset())
  elseif S.H.deleted >= 0 then
    F.answer(F.refuse(REFUSED.DELETED))
  elseif kind == DROP_SHAPES then
    F.answer(pack('<BdB', 0, 0, F.drop_groups(S.H) and MORE or COMPLETE))
  elseif kind == VALUE_LIMIT then
    F.answer(limit_value(args[4], bad, what, limit))
  else
    F.answer(configure(args, blocks, bad, what, limit))
  end
  return F.finish()
end

-- Removes some messages of one page, and the rest of their last hash. keep says whether the answers to their tokens stay. The states
-- of those that are gone become 0, so that the next call begins after them; the last one removes the page.
local function drop_messages(page, keep)
  local tag = S.tag
  local raw = call('GET', tag .. 'st' .. page) or ''
  local left, last = keep and LIMIT.items or DROPPED_AT_ONCE, nil
  local gone = {'UNLINK'}
  for at = PAGE_HEAD + 1, #raw do
    if byte(raw, at) ~= 0 then
      local seq = tonumber(page) * PAGE + at - PAGE_HEAD - 1
      local key = F.home_of(seq)
      if key ~= last then
        if left <= 0 then
          F.write(spread(gone))
          F.write('SETRANGE', tag .. 'st' .. page, PAGE_HEAD, string.rep('\0', at - PAGE_HEAD - 1))
          return
        end
        gone[#gone + 1], last = key, key
      end
      if keep then
        local M = F.message(seq)
        F.detach(M)
        F.forget_id(M)
        S.messages[seq] = nil
      end
      left = left - 1
    end
  end
  gone[#gone + 1] = tag .. 'st' .. page
  F.write(spread(gone))
  F.write('UNLINK', spread(F.finished_keys(tonumber(page))))
  F.write('ZREM', tag .. 'pg', page)
end

-- Removes the parts of sessions, some at a time. Whether any were left.
local function drop_sessions()
  local tag = S.tag
  local ids = call('HRANDFIELD', tag .. 's', 64)
  for i = 1, #ids do
    F.write('UNLINK', tag .. 'k' .. ids[i], tag .. 'u' .. ids[i], tag .. 'f' .. ids[i], tag .. 'x' .. ids[i])
    F.write('HDEL', tag .. 's', ids[i])
  end
  return #ids > 0
end

-- Removes what only a dropped shard has no use for. Whether more is left.
local function drop_rest(H)
  local tag = S.tag
  local gone = {'UNLINK'}
  while H.buckets > 0 and #gone <= PAGE_KEYS do
    H.buckets = H.buckets - 1
    gone[#gone + 1] = tag .. 'i' .. fmt('%d', H.buckets)
  end
  local more = H.buckets > 0
  local buckets = call('HKEYS', tag .. 'tb')
  for i = 1, #buckets do
    gone[#gone + 1] = tag .. 't' .. buckets[i]
  end
  for number = 1, call('HLEN', tag .. 'kd') do
    gone[#gone + 1] = tag .. 'v' .. number
    gone[#gone + 1] = tag .. 'w' .. number
    gone[#gone + 1] = tag .. 'y' .. number
  end
  for _, name in ipairs({
    'p', 'd', 'g', 'a', 'ac', 'sg', 's', 'pg', 'tb', 'kd', 'ks', 'kc', 'vn', 'e', 'c', 'cf', 'l', 'q', 'r', 'b', 'vl', 'n', 'w', 'j',
  }) do
    gone[#gone + 1] = tag .. name
  end
  call(spread(gone))
  return more
end

-- Says that a shard is not there any more.
local function bury(H)
  local key = S.tag .. 'm'
  if H.format ~= DROPPED then
    call('SETRANGE', key, 1, char(DROPPED))
  end
end

function F.del(keys, args)
  if not call then
    F.init()
  end
  local raw = call('GET', keys[1])
  if not raw or #raw == 2 then
    return 1
  end
  local keeps_answers = args[1] == '1'
  local H = F.header_of(raw)
  if keeps_answers and (H.deleted < 0 or H.format == DROPPED) then
    return 1
  elseif keeps_answers and H.mark ~= 0 then
    return redis.error_reply('INCONSISTENT an earlier call ended half way')
  elseif H.format ~= FORMAT and H.format ~= DROPPED then
    return redis.error_reply('FORMAT the shard has another format') -- its messages lie elsewhere
  end
  local K = F.forget_known(keys[1])
  S = {
    H = H, K = K, tag = K.tag, keys = K.keys, heads = {}, messages = {}, P = {},
    began = not keeps_answers, sequence = H.sequence, serial = H.serial,
  }
  if not keeps_answers then
    bury(H)
  end
  local page = call('ZRANGE', S.tag .. 'pg', 0, 0)[1]
  local more = true
  if page then
    drop_messages(page, keeps_answers)
  elseif not F.abandon_shapes(H) and not drop_sessions() and not F.drop_groups(H) then
    more = not keeps_answers and drop_rest(H)
  end
  F.flush()
  H.mark = 0
  local stored = F.pack_header(H)
  if not keeps_answers then
    stored = more and sub(stored, 1, 1) .. char(DROPPED) .. sub(stored, 3) or '\0' .. char(DROPPED)
  end
  call('SET', keys[1], stored)
  return more and 0 or 1
end
