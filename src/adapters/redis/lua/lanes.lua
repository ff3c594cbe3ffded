-- Exclusivity values: l has the pending messages of each value by rank, its lane; q the best message of each lane that may be
-- served; r the running messages of each value; b those that hold back later ones, where order is strict; vl the limits of
-- single values. A dequeue looks at q only, so messages that wait behind their value cost it nothing.
--
-- l, r and b have equal scores and are ordered by their members: hash of the value, priority, sequence. What a call changes
-- is kept beside what is stored, and written by F.flush. A rank is {priority, sequence}.
--
-- A place is a set of lanes with their heads: that of all messages, without a name, or that of a group of a shape.

local HASH_BYTES = 16
local LANE_PAGE = 8 -- members of a lane, or heads, that are read at a time
local HEADS_PAGE = 16

local function is_before(a, b)
  return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
end

-- The bytes of a rank, in its order. Below 0 and above it, priorities are exact within 53 bits.
local function bytes_of(rank)
  local priority = rank[1]
  if priority < 0 then
    return pack('>BI7I7', 0, priority + LIMIT.priority, rank[2])
  end
  return pack('>BI7I7', 1, priority, rank[2])
end

local function rank_of(member)
  local sign, priority, seq = parse('>BI7I7', member, HASH_BYTES + 1)
  return {sign == 0 and priority - LIMIT.priority or priority, seq}
end

-- Behind all members of a value: the byte after the hash is 0 or 1.
local function behind(value)
  return '(' .. value .. '\2'
end

-- The members of one value in an index.
local function row_of(index, value)
  return {
    key = S.tag .. index, value = value, add = {}, del = {}, dels = 0, change = 0, page = {}, at = 1, from = '[' .. value,
  }
end

local function enter(R, rank)
  R.add[R.value .. bytes_of(rank)] = rank
  R.change = R.change + 1
end

local function leave(R, rank)
  local member = R.value .. bytes_of(rank)
  R.add[member] = nil
  R.del[member] = true
  R.dels, R.change = R.dels + 1, R.change - 1
end

-- The first stored member that the call has not removed.
local function first_stored(R)
  while true do
    local member = R.page[R.at]
    if member and not R.del[member] then
      return member
    elseif member then
      R.at = R.at + 1
    elseif R.is_all then
      return nil
    else
      R.page, R.at = call('ZRANGEBYLEX', R.key, R.from, behind(R.value), 'LIMIT', 0, LANE_PAGE), 1
      R.is_all = #R.page < LANE_PAGE
      R.from = '(' .. (R.page[#R.page] or '')
    end
  end
end

local function first(R)
  local stored = first_stored(R)
  local best = stored and rank_of(stored)
  for _, rank in pairs(R.add) do
    if not best or is_before(rank, best) then
      best = rank
    end
  end
  return best
end

local function last(R)
  if R.tail == nil or R.del[R.tail] then
    R.tail = false
    local page = call('ZREVRANGEBYLEX', R.key, behind(R.value), '[' .. R.value, 'LIMIT', 0, R.dels + 1)
    for i = 1, #page do
      R.tail = R.tail or not R.del[page[i]] and page[i]
    end
  end
  local best = R.tail and rank_of(R.tail)
  for _, rank in pairs(R.add) do
    if not best or is_before(best, rank) then
      best = rank
    end
  end
  return best
end

-- The first rank of a row after another one.
local function next_after(R, after)
  local from, best = after[1] == -math.huge and '[' .. R.value or '(' .. R.value .. bytes_of(after), nil
  repeat
    local page = call('ZRANGEBYLEX', R.key, from, behind(R.value), 'LIMIT', 0, LANE_PAGE)
    for i = 1, #page do
      best = best or not R.del[page[i]] and rank_of(page[i]) or nil
    end
    from = '(' .. (page[#page] or '')
  until best or #page < LANE_PAGE
  for _, rank in pairs(R.add) do
    if is_before(after, rank) and (not best or is_before(rank, best)) then
      best = rank
    end
  end
  return best
end

local function size(R)
  R.stored = R.stored or call('ZLEXCOUNT', R.key, '[' .. R.value, behind(R.value))
  return R.stored + R.change
end

local function value_of(value)
  local held = S.held or {}
  local V = held[value]
  if not V then
    V = {value = value, running = row_of('r', value), blocking = S.P.strict and row_of('b', value)}
    held[value], S.held = V, held
  end
  return V
end

local function limit_of(V)
  V.limit = V.limit or tonumber(call('HGET', S.tag .. 'vl', V.value) or S.P.in_flight)
  return V.limit
end

local function has_room(V)
  return size(V.running) < limit_of(V)
end

local function may_serve(V, rank)
  if not has_room(V) then
    return false
  end
  local ahead = V.blocking and first(V.blocking)
  return not ahead or is_before(rank, ahead)
end

-- Whether a pending message may be leased, that is whether its value does not hold it back.
function F.may_serve(M)
  return not S.P.exclusive or may_serve(value_of(F.routing_hash(M)), {M.priority, M.seq})
end

-- The lanes of all messages, or of those of a group.
function F.place(name)
  local known = S.places or {}
  local P = known[name]
  if not P then
    P = {name = name, index = name == '' and 'l' or 'y' .. name, heads = S.tag .. 'q' .. name, lanes = {}, list = {}, skip = {}}
    known[name], S.places = P, known
  end
  return P
end

-- The lane of a value, whose head is judged again before it is used.
local function lane_of(P, value)
  local lane = P.lanes[value]
  if not lane then
    lane = {value = value, pending = row_of(P.index, value)}
    local stored = first_stored(lane.pending)
    if stored then
      lane.old = rank_of(stored) -- no other message of the lane is a stored head
      P.skip[lane.old[2]] = true
    end
    P.lanes[value] = lane
    P.list[#P.list + 1] = lane
  end
  lane.is_stale, S.has_lanes = true, true
  return lane
end

local function refresh(P, lane)
  local V = value_of(lane.value)
  lane.is_stale, lane.head, lane.is_held = false, nil, false
  if P.name == '' and not has_room(V) then
    return
  end
  local rank = first(lane.pending)
  if rank and may_serve(V, rank) then
    lane.head = rank
  else
    lane.is_held = rank ~= nil
  end
end

-- Judges the head of a value again, and where it is parked.
function F.refresh_value(value)
  value_of(value).is_changed = true
  lane_of(F.place(''), value)
end

-- A dequeue met a value that may not be served.
function F.hide_lane(P, value)
  lane_of(P, value)
end

-- Takes a message out of a lane in which it was pending.
function F.leave_lane(P, value, M, priority)
  leave(lane_of(P, value).pending, {priority, M.seq})
end

-- Follows a message into and out of a lane.
function F.follow_lane(P, value, M, state, priority)
  local lane = lane_of(P, value)
  if state == STATE.Pending then
    leave(lane.pending, {priority, M.seq})
  end
  if M.state == STATE.Pending and not M.gone then
    enter(lane.pending, {M.priority, M.seq})
  end
end

-- Follows a message that came from a state and priority; none if it is new.
function F.follow_value(M, state, priority)
  if M.gone then
    return -- finished messages hold nothing back
  end
  local value = F.routing_hash(M)
  local V, before, now = value_of(value), {priority, M.seq}, {M.priority, M.seq}
  V.is_changed = true
  F.follow_lane(F.place(''), value, M, state, priority)
  local was_running, is_running = state == STATE.Running, M.state == STATE.Running
  if was_running ~= is_running then
    (is_running and enter or leave)(V.running, {0, M.seq})
  end
  if V.blocking and (was_running or state == STATE.Invisible) then
    leave(V.blocking, before)
  end
  if V.blocking and (is_running or M.state == STATE.Invisible) then
    enter(V.blocking, now)
  end
end

-- Whether a pending message comes before another one of its value.
function F.is_before_others(M)
  if not S.P.exclusive or M.state ~= STATE.Pending then
    return false
  end
  local of_last = last(F.place('').lanes[F.routing_hash(M)].pending)
  return is_before({M.priority, M.seq}, of_last)
end

-- The best head after a rank, or the best of all.
function F.next_head(P, after)
  local W = P.walk
  if not W then
    W = {place = after and F.place_after(P.heads, after[1], after[2]) or 0, page = {}, at = 1}
    P.walk = W
  end
  local best
  while true do
    if not W.page[W.at] then
      W.page, W.at = call('ZRANGE', P.heads, W.place, W.place + HEADS_PAGE - 1, 'WITHSCORES'), 1
      W.place = W.place + HEADS_PAGE
      if #W.page == 0 then
        break
      end
    end
    local rank = {tonumber(W.page[W.at + 1]), F.sequence_of(W.page[W.at])}
    if not P.skip[rank[2]] and not (after and not is_before(after, rank)) then
      best = rank
      break
    end
    W.at = W.at + 2
  end
  for i = 1, #P.list do
    local lane = P.list[i]
    if lane.is_stale then
      refresh(P, lane)
    end
    local head = lane.head
    if head and (not after or is_before(after, head)) and (not best or is_before(head, best)) then
      best = head
    end
  end
  return best
end

-- The next message of a lane after a rank.
function F.next_in_lane(P, value, after)
  local lane = P.lanes[value]
  return next_after(lane and lane.pending or row_of(P.index, value), after)
end

-- Judges the lanes that changed, before anything is written.
function F.settle_lanes()
  for value, V in pairs(S.held or {}) do
    if V.is_changed and S.shapes and has_room(V) then
      for _, name in ipairs(F.parked(value)) do
        lane_of(F.place(name), value)
      end
    end
  end
  for _, P in pairs(S.places) do
    for i = 1, #P.list do
      if P.list[i].is_stale then
        refresh(P, P.list[i])
      end
    end
  end
end

local function write_row(put, R)
  for member in pairs(R.del) do
    if not R.add[member] then
      put('ZREM', R.key, member)
    end
  end
  for member in pairs(R.add) do
    put('ZADD', R.key, 0, member)
  end
end

-- Writes what changed in lanes and values.
function F.write_lanes(put)
  S.heads.q = nil
  for _, V in pairs(S.held or {}) do
    write_row(put, V.running)
    if V.blocking then
      write_row(put, V.blocking)
    end
  end
  for _, P in pairs(S.places) do
    for i = 1, #P.list do
      local lane = P.list[i]
      local old, head = lane.old, lane.head
      write_row(put, lane.pending)
      if old and not (head and head[2] == old[2]) then
        put('ZREM', P.heads, F.member(old[2]))
      end
      if head then
        put('ZADD', P.heads, head[1], F.member(head[2]))
      end
      if P.name ~= '' then
        F.park(put, P.name, lane)
      end
    end
  end
end

-- Applies a raised limit of the queue to some more values.
local function recheck(after)
  local H, cf = S.H, S.tag .. 'cf'
  local from, value = after and behind(after) or '-', nil
  for _ = 1, LIMIT.rechecked do
    local member = call('ZRANGEBYLEX', S.tag .. 'r', from, '+', 'LIMIT', 0, 1)[1]
    value = member and sub(member, 1, HASH_BYTES)
    if not value then
      break
    end
    F.refresh_value(value)
    from = behind(value)
  end
  S.changed = true
  if value then
    F.write('HSET', cf, 'recheck', value)
  else
    F.write('HDEL', cf, 'recheck')
  end
  H.flags = F.set_flag(H.flags, RECHECKING, value ~= nil)
end

function F.recheck()
  if F.has_flag(S.H.flags, RECHECKING) then
    recheck(call('HGET', S.tag .. 'cf', 'recheck'))
  end
end

-- A new limit of the queue. A lower one revokes nothing: a dequeue that meets a full value notices it.
function F.set_limit(in_flight, is_raised)
  F.change_settings('in_flight', in_flight)
  if is_raised then
    recheck(nil)
  else
    F.recheck()
  end
end

-- Sets the own limit of a value, or removes it. Returns a refusal if there is no room for it.
function F.set_value_limit(value, limit)
  local vl = S.tag .. 'vl'
  if not limit then
    F.write('HDEL', vl, value)
  elseif call('HLEN', vl) >= LIMIT.value_limits and call('HEXISTS', vl, value) == 0 then
    return F.refuse(REFUSED.FULL, FULL_LIMITS)
  else
    F.write('HSET', vl, value, fmt('%d', limit))
  end
  value_of(value).limit = limit or S.P.in_flight
  F.refresh_value(value)
end

-- What a message waits for that is or will be pending: 0 and how many come before it; 1 and the message that it is behind;
-- 2, the limit of its value, how many of it wait, and some that hold it.
function F.waiting_cause(M)
  local rank = {M.priority, M.seq}
  if not S.P.exclusive then
    return pack('<Bd', 0, F.place_before(S.tag .. 'p', rank[1], rank[2])), {}
  end
  local V = value_of(F.routing_hash(M))
  if may_serve(V, rank) then
    return pack('<Bd', 0, F.place_before(S.tag .. 'q', rank[1], rank[2])), {}
  end
  local ahead = V.blocking and first(V.blocking)
  if ahead and is_before(ahead, rank) then
    return pack('<B', 1), {F.message(ahead[2])}
  end
  local holders = {}
  local members = call('ZRANGEBYLEX', V.running.key, '[' .. V.value, behind(V.value), 'LIMIT', 0, LIMIT.holders)
  for i = 1, #members do
    holders[i] = F.message(rank_of(members[i])[2])
  end
  return pack('<Bdd', 2, limit_of(V), size(row_of('l', V.value))), holders
end
