-- Counts by the values of metadata keys. What a message is counted under is fixed at its enqueue, as the number of a set of
-- keys (ks) and two bits for each key: 0 it has no such key, 1 its own value, 2 its value found no room.
--
-- A field of v<key> is = and the value, ~none, ~other or ~gone. A value without messages may give way to a new one; its flows
-- go on under ~gone. y<key> orders the fields by the position of their last change. vn has the number of values with counts of their own, kc that of the messages of each set.

local PLACE = {} -- of the states whose depth is counted by value
local OWN, OTHER = 1, 2

-- The keys of a set, each with its number and its name.
function F.key_set(number)
  S.key_sets = S.key_sets or {}
  local known = S.key_sets[number]
  if not known then
    known = {}
    local raw = call('HGET', S.tag .. 'ks', fmt('%d', number)) or ''
    local at = 1
    while at <= #raw do
      local size = parse('<BH', raw, at)
      local name_size = parse('<H', raw, at + 1)
      known[#known + 1] = {number = size, name = sub(raw, at + 3, at + 2 + name_size)}
      at = at + 3 + name_size
    end
    S.key_sets[number] = known
  end
  return known
end

local function entry_of(key, field)
  local name = key .. field
  S.values = S.values or {}
  local known = S.values[name]
  if not known then
    known = {key = key, field = field, depth = {0, 0, 0, 0}, flows = {0, 0, 0, 0}, at = 0, exists = false}
    local raw = call('HGET', S.tag .. 'v' .. key, field)
    if raw then
      local d, f = known.depth, known.flows
      d[1], d[2], d[3], d[4], f[1], f[2], f[3], f[4], known.at = parse('<ddddddddd', raw)
      known.exists = true
    end
    S.values[name] = known
  end
  return known
end

local function has_messages(entry)
  local d = entry.depth
  return d[1] + d[2] + d[3] + d[4] > 0
end

local function own_values(key)
  local name = 'n' .. key
  S.own_values = S.own_values or {}
  S.own_values[name] = S.own_values[name] or tonumber(call('HGET', S.tag .. 'vn', fmt('%d', key)) or 0)
  return S.own_values[name]
end

local function set_own_values(key, number)
  S.own_values['n' .. key] = number
  F.write('HSET', S.tag .. 'vn', fmt('%d', key), fmt('%d', number))
end

-- Moves the flows of the longest idle value to ~gone. Whether there was one.
local function evict(key, position)
  F.flush_values() -- the order of idle values is that of the stored index
  local value = call('ZRANGE', S.tag .. 'w' .. key, 0, 0)[1]
  if not value then
    return false
  end
  local entry, gone = entry_of(key, '=' .. value), entry_of(key, '~gone')
  for i = 1, 4 do
    gone.flows[i] = gone.flows[i] + entry.flows[i]
  end
  gone.at, gone.changed, gone.exists = position, true, true
  entry.exists, entry.changed, entry.depth, entry.flows = false, true, {0, 0, 0, 0}, {0, 0, 0, 0}
  set_own_values(key, own_values(key) - 1)
  return true
end

local function admit(key, value, position)
  if not value then
    return 0
  end
  local entry, most = entry_of(key, '=' .. value), S.P.values_max
  if entry.exists then
    return OWN
  end
  if own_values(key) >= most then
    evict(key, position)
  end
  if own_values(key) >= most then
    return OTHER
  end
  entry.exists, entry.changed, entry.at = true, true, position
  set_own_values(key, own_values(key) + 1)
  return OWN
end

-- Fixes what a new message is counted under.
function F.admit_values(M)
  local keys, own, scale = F.key_set(M.key_set), F.metadata(M), 1
  for i = 1, #keys do
    M.counted = M.counted + scale * admit(keys[i].number, own[keys[i].name], S.H.position + 1)
    scale = scale * 4
  end
end

-- The names of the counted keys that a message has, for the history.
function F.own_keys(M)
  local names, counted = {}, M.counted
  if M.key_set ~= 0 then
    local keys = F.key_set(M.key_set)
    for i = 1, #keys do
      if counted % 4 ~= 0 then
        names[#names + 1] = pack('<H', #keys[i].name) .. keys[i].name
      end
      counted = floor(counted / 4)
    end
  end
  return concat(names)
end

local function flow_of(trigger, from, to)
  if trigger == TRIGGER.Enqueue then
    return 1
  elseif trigger == TRIGGER.Dequeue then
    return 2
  elseif to == STATE.Completed then
    return 3
  elseif to == STATE.Errored and from ~= to then
    return 4
  end
end

-- Counts a row under each key of the message's set.
function F.count_values(M, trigger, from, to)
  if not from or to == NONE then
    S.set_uses = S.set_uses or {}
    S.set_uses[M.key_set] = (S.set_uses[M.key_set] or 0) + (from and -1 or 1)
  end
  local leaves, enters, flow = PLACE[from or NONE], PLACE[to], flow_of(trigger, from, to)
  if leaves == enters and not flow then
    return
  end
  local keys, counted = F.key_set(M.key_set), M.counted
  for i = 1, #keys do
    local as, field = counted % 4, '~none'
    counted = floor(counted / 4)
    if as == OWN then
      field = '=' .. F.metadata_at_enqueue(M)[keys[i].name]
    elseif as == OTHER then
      field = '~other'
    end
    local entry = entry_of(keys[i].number, field)
    if leaves then
      entry.depth[leaves] = entry.depth[leaves] - 1
    end
    if enters then
      entry.depth[enters] = entry.depth[enters] + 1
    end
    if flow then
      entry.flows[flow] = entry.flows[flow] + 1
    end
    entry.at, entry.changed, entry.exists = S.H.position, true, true
  end
end

-- Writes the counts by value that changed, and the index of idle values.
function F.flush_values()
  local tag = S.tag
  for _, entry in pairs(S.values or {}) do
    if entry.changed then
      F.begin()
      local d, f, value = entry.depth, entry.flows, sub(entry.field, 2)
      local is_own = sub(entry.field, 1, 1) == '='
      if entry.exists then
        call('HSET', tag .. 'v' .. entry.key, entry.field,
          pack('<ddddddddd', d[1], d[2], d[3], d[4], f[1], f[2], f[3], f[4], entry.at))
        call('ZADD', tag .. 'y' .. entry.key, entry.at, entry.field)
      else
        call('HDEL', tag .. 'v' .. entry.key, entry.field)
        call('ZREM', tag .. 'y' .. entry.key, entry.field)
      end
      if is_own and entry.exists and not has_messages(entry) then
        call('ZADD', tag .. 'w' .. entry.key, entry.at, value)
      elseif is_own then
        call('ZREM', tag .. 'w' .. entry.key, value)
      end
      entry.changed = false
    end
  end
  for set, change in pairs(S.set_uses or {}) do
    if change ~= 0 then
      call('HINCRBY', tag .. 'kc', fmt('%d', set), change)
    end
  end
  S.set_uses = nil
end

function F.init_values()
  PLACE = {[STATE.Invisible] = 1, [STATE.Pending] = 2, [STATE.Running] = 3, [STATE.Errored] = 4}
end

-- Gives a set of keys a number, before messages are counted under it. names: packed, in the order of the settings. Returns
-- the number; nil if all numbers are taken by sets that messages have.
function F.declare_keys(names)
  if #names == 0 then
    return 0
  end
  local tag, known = S.tag, call('HGETALL', S.tag .. 'ks')
  local packed, at = {}, 1
  local numbers = call('HLEN', tag .. 'kd')
  while at <= #names do
    local size = parse('<H', names, at)
    local name = sub(names, at + 2, at + 1 + size)
    at = at + 2 + size
    local number = call('HGET', tag .. 'kd', name)
    if not number then
      numbers = numbers + 1
      number = numbers
      F.write('HSET', tag .. 'kd', name, fmt('%d', number))
    end
    packed[#packed + 1] = pack('<BH', tonumber(number), size) .. name
  end
  local set, count, taken = concat(packed), 0, {}
  for i = 1, #known, 2 do
    count = count + 1
    taken[tonumber(known[i])] = true
    if known[i + 1] == set then
      return tonumber(known[i])
    end
  end
  local free = count < LIMIT.key_sets and count + 1 or nil
  for number = 1, free and 0 or LIMIT.key_sets do
    if not free and tonumber(call('HGET', tag .. 'kc', fmt('%d', number)) or 0) == 0 then
      free = number
    end
  end
  if free then
    F.write('HSET', tag .. 'ks', fmt('%d', free), set)
    S.key_sets = nil
  end
  return free
end
