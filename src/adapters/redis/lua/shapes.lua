-- Filter shapes: for each set of values of some metadata keys, a group: the messages that have them. z<shape> counts the
-- messages of each group by state. y<shape>.<group> has its pending messages by rank; in an exclusive queue their lanes, with
-- the heads in q<shape>.<group>, and n has the groups in which a value is parked.
--
-- A group is named by 32 hex digits of a hash, so no text of a user is in a key. Shapes have numbers that are never used again.
-- One that is declared while there are messages is filled by sweeps, by sequence, and used once it has every message. A lane
-- that a dequeue met although its value may not be served is parked: it comes back when the value has room again.

local FILL_PAGES = 1024
local DROPPED_GROUPS = 64 -- groups of a shape without use that one call removes
local COUNTS = '<I5I5I5I5I5I5'
local COMPLETE_SHAPE = -1 -- in place of the sequence up to which a shape is filled

local function cf()
  return S.tag .. 'cf'
end

-- The keys of a shape, from where they begin; and where they end.
local function keys_at(raw, at)
  local keys, count = {}, byte(raw, at)
  at = at + 1
  for i = 1, count do
    local bytes = parse('<H', raw, at)
    keys[i], at = sub(raw, at + 2, at + 1 + bytes), at + 2 + bytes
  end
  return keys, at
end

-- The declared shapes in the order of the settings.
function F.read_shapes()
  local raw, at, shapes = call('HGET', cf(), 'shapes') or '', 1, {}
  while at <= #raw do
    local shape = {}
    shape.number, shape.filled, at = parse('<dd', raw, at)
    shape.filled = shape.filled >= 0 and shape.filled or nil
    local from = at
    shape.keys, at = keys_at(raw, at)
    shape.packed = sub(raw, from, at - 1)
    shapes[#shapes + 1] = shape
  end
  return shapes
end

-- Stores the shapes, and what is known of them without reading them.
local function store_shapes(H, shapes)
  local parts, is_filling = {}, false
  for i = 1, #shapes do
    parts[i] = pack('<dd', shapes[i].number, shapes[i].filled or COMPLETE_SHAPE) .. shapes[i].packed
    is_filling = is_filling or shapes[i].filled ~= nil
  end
  H.flags = F.set_flag(F.set_flag(H.flags, HAS_SHAPES, #shapes > 0), FILLING, is_filling)
  F.write('HSET', cf(), 'shapes', concat(parts))
  S.changed = true
end

-- The numbers of shapes that are of no use any more and still have groups.
local function read_gone()
  local raw, gone = call('HGET', cf(), 'gone') or '', {}
  for at = 1, #raw, 8 do
    gone[#gone + 1] = parse('<d', raw, at)
  end
  return gone
end

local function store_gone(H, gone)
  local parts = {}
  for i = 1, #gone do
    parts[i] = pack('<d', gone[i])
  end
  H.flags = F.set_flag(H.flags, DROPPING, #gone > 0)
  F.write('HSET', cf(), 'gone', concat(parts))
  S.changed = true
end

-- Replaces the shapes: those that stay keep what they have, and new ones are filled if there are messages.
function F.declare_shapes(H, raw, has_messages, is_new_kind)
  local last, at = tonumber(call('HGET', cf(), 'shape') or 0), 1
  local old, shapes, gone, kept = S.shapes or {}, {}, read_gone(), {}
  if #raw == 0 and #old == 0 then
    return
  end
  while at <= #raw do
    local from, shape, keys = at, nil, nil
    keys, at = keys_at(raw, at)
    local packed = sub(raw, from, at - 1)
    for i = 1, #old do
      if old[i].packed == packed then
        shape = old[i]
        kept[i] = true
        shape.filled = not is_new_kind and shape.filled or nil
      end
    end
    if not shape then
      last = last + 1
      shape = {number = last, filled = has_messages and 0 or nil, keys = keys, packed = packed}
    end
    shapes[#shapes + 1] = shape
  end
  for i = 1, #old do
    if not kept[i] then
      gone[#gone + 1] = old[i].number
    end
  end
  F.write('HSET', cf(), 'shape', fmt('%d', last))
  store_shapes(H, shapes)
  store_gone(H, gone)
  S.shapes = #shapes > 0 and shapes or nil
  if not S.shapes then
    F.write('UNLINK', S.tag .. 'n')
  end
end

-- The name of a shape's group for these pairs; nil if a key is missing.
local function group_name(shape, own)
  local values, keys = S.tag, shape.keys
  for i = 1, #keys do
    local value = own[keys[i]]
    if not value then
      return nil
    end
    values = values .. pack('>H', #value) .. value
  end
  return fmt('%d.%.32s', shape.number, sha1(values))
end

local function group_of_name(shape, name)
  local groups = S.groups or {}
  local G = groups[name]
  if not G then
    G = {name = name, counts_key = fmt(S.K.shape_key, shape.number), change = {0, 0, 0, 0, 0, 0}, members = false,
      field = sub(name, -32), raw = nil}
    groups[name], S.groups = G, groups
  end
  return G
end

-- The group of a message in a shape; nil if it is in none.
local function group_of(shape, M)
  M.groups = M.groups or {}
  local name = M.groups[shape.number]
  if name == nil then
    name = group_name(shape, F.metadata(M)) or false
    M.groups[shape.number] = name
  end
  return name and group_of_name(shape, name)
end

-- The numbers of its messages by state, as they will be.
local function counts_of(G)
  if G.raw == nil then
    G.raw = call('HGET', G.counts_key, G.field)
  end
  local c = G.change
  if not G.raw then
    return c[1], c[2], c[3], c[4], c[5], c[6]
  end
  local a, b, d, e, f, g = parse(COUNTS, G.raw)
  return a + c[1], b + c[2], d + c[3], e + c[4], f + c[5], g + c[6]
end

local function set_member(G, seq, priority)
  if G.members then
    G.members[seq] = priority
  else
    G.members = {[seq] = priority}
  end
end

-- Follows a message in its group of a shape, from a state and priority; none if it was not there.
local function follow_in(shape, M, state, priority)
  local G = group_of(shape, M)
  if not G then
    return
  end
  local change = G.change
  S.has_groups = true
  if state then
    change[state + 1] = change[state + 1] - 1
  end
  if M.gone then
    return
  end
  change[M.state + 1] = change[M.state + 1] + 1
  if S.P.exclusive then
    F.follow_lane(F.place(G.name), F.routing_hash(M), M, state, priority)
  elseif M.state == STATE.Pending then
    set_member(G, M.seq, M.priority)
  elseif state == STATE.Pending then
    set_member(G, M.seq, false)
  end
end

-- Takes a message out of a group in which it was in a state and at a priority.
local function leave_group(G, M, state, priority)
  local change = G.change
  S.has_groups = true
  change[state + 1] = change[state + 1] - 1
  if state == STATE.Pending and S.P.exclusive then
    F.leave_lane(F.place(G.name), F.routing_hash(M), M, priority)
  elseif state == STATE.Pending then
    set_member(G, M.seq, false)
  end
end

-- Follows a message whose metadata changed, perhaps from one group to another.
local function follow_between(shape, M, state, priority)
  local before, after = group_name(shape, M.metadata_before), group_of(shape, M)
  if before and after and before == after.name then
    return follow_in(shape, M, state, priority)
  elseif before then
    leave_group(group_of_name(shape, before), M, state, priority)
  end
  follow_in(shape, M)
end

function F.follow_shapes(M, state, priority)
  local follow = M.metadata_before and follow_between or follow_in
  for i = 1, #S.shapes do
    local shape = S.shapes[i]
    if not shape.filled or M.seq <= shape.filled then
      follow(shape, M, state, priority)
    end
  end
end

-- Writes the groups that changed.
function F.write_groups(put)
  for _, G in pairs(S.groups or {}) do
    local a, b, c, d, e, f = counts_of(G)
    if a + b + c + d + e + f > 0 then
      put('HSET', G.counts_key, G.field, pack(COUNTS, a, b, c, d, e, f))
    else
      put('HDEL', G.counts_key, G.field)
    end
    local members = S.tag .. 'y' .. G.name
    for seq, priority in pairs(G.members or {}) do
      if priority then
        put('ZADD', members, priority, F.member(seq))
      else
        put('ZREM', members, F.member(seq))
      end
    end
  end
end

-- The groups in which a value is parked.
function F.parked(value)
  local live, names = {}, {}
  for i = 1, #S.shapes do
    live[fmt('%d', S.shapes[i].number)] = true
  end
  local members = call('ZRANGEBYLEX', S.tag .. 'n', '[' .. value, '(' .. value .. ':')
  for i = 1, #members do
    local name = sub(members[i], 17)
    if live[string.match(name, '^%d+')] then
      names[#names + 1] = name
    else
      F.write('ZREM', S.tag .. 'n', members[i]) -- its shape is gone
    end
  end
  return names
end

-- Notes whether a value is parked in a group.
function F.park(put, name, lane)
  if lane.is_held then
    put('ZADD', S.tag .. 'n', 0, lane.value .. name)
  else
    put('ZREM', S.tag .. 'n', lane.value .. name)
  end
end

local function filter_table(filter)
  local own = {}
  for i = 1, #filter do
    own[filter[i][1]] = filter[i][2]
  end
  return own
end

-- Where the messages that meet a filter are: nil for nowhere; else the name of the group that has them, '' for all messages,
-- and whether all that it has meet the filter.
function F.source(filter)
  if #filter == 0 then
    return '', true
  end
  local own, smallest, least = filter_table(filter), '', S.H.m1
  for i = 1, S.shapes and #S.shapes or 0 do
    local shape = S.shapes[i]
    local name = not shape.filled and group_name(shape, own)
    if name then
      local a, pending, c, d, e, f = counts_of(group_of_name(shape, name))
      if a + pending + c + d + e + f == 0 then
        return nil
      elseif #shape.keys == #filter then
        return name, true
      elseif pending < least then
        smallest, least = name, pending
      end
    end
  end
  return smallest, false
end

-- The counts of a filter by state, packed; nil if it has no complete shape.
function F.depth(filter)
  local own = filter_table(filter)
  for i = 1, S.shapes and #S.shapes or 0 do
    local shape = S.shapes[i]
    local name = not shape.filled and #shape.keys == #filter and group_name(shape, own)
    if name then
      local a, b, c, d, e, f = counts_of(group_of_name(shape, name))
      return pack('<dddddd', a, b, c, d, e, f)
    end
  end
end

-- Takes up to max messages into shapes that are not complete. Returns how many.
function F.fill_shapes(max)
  if not F.has_flag(S.H.flags, FILLING) then
    return 0
  end
  local all, count = F.state_pattern(0, 1, 2, 3, 4, 5), 0
  for i = 1, #S.shapes do
    local shape = S.shapes[i]
    while shape.filled do
      local seq, stopped = F.first_of(all, shape.filled, S.H.sequence, FILL_PAGES)
      if seq and count == max then
        store_shapes(S.H, S.shapes)
        return count
      elseif seq then
        local M = F.message(seq)
        shape.filled, count = seq, count + 1
        follow_in(shape, M)
        if S.P.exclusive then
          F.refresh_value(F.routing_hash(M))
        end
      elseif stopped then
        shape.filled = stopped
        store_shapes(S.H, S.shapes)
        return count
      else
        shape.filled = nil
      end
    end
  end
  store_shapes(S.H, S.shapes)
  return count
end

-- Removes some groups of shapes without use. Returns whether there was something to remove.
function F.drop_groups(H)
  local tag, gone = S.tag, read_gone()
  if not gone[1] then
    return false
  end
  local number = fmt('%d', gone[1])
  local counts_key = tag .. 'z' .. number
  local fields = call('HRANDFIELD', counts_key, DROPPED_GROUPS)
  local keys, known = {'UNLINK'}, {'HDEL', counts_key}
  for i = 1, #fields do
    keys[#keys + 1] = tag .. 'y' .. number .. '.' .. fields[i]
    keys[#keys + 1] = tag .. 'q' .. number .. '.' .. fields[i]
    known[#known + 1] = fields[i]
  end
  if #fields > 0 then
    F.write(spread(keys))
    F.write(spread(known))
  end
  if #fields < DROPPED_GROUPS then
    table.remove(gone, 1)
    store_gone(H, gone)
  end
  return true
end

-- All shapes of a deleted or dropped shard are of no use. Returns whether there were some.
function F.abandon_shapes(H)
  local shapes, gone = F.read_shapes(), read_gone()
  for i = 1, #shapes do
    gone[#gone + 1] = shapes[i].number
  end
  if #shapes > 0 then
    store_gone(H, gone) -- first: an error in between must not forget their groups
    store_shapes(H, {})
  end
  return #shapes > 0
end
