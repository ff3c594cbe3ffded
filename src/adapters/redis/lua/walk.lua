-- The choice of the messages of a dequeue. Without a filter, or with a declared one, the best message is at the head of an index.
-- Any other filter walks the smallest group that has all its messages, or all pending messages, by rank, a bounded number in a call, and answers with a cursor: the last rank examined, when
-- the walk began, and in an exclusive queue the present value and its last rank.
--
-- An exclusive queue walks its values in the order of their heads, each lane by rank as long as its value may be served.

local WALK_PAGE = 64
local CURSOR = '<dddB'
local INSIDE = '<c16dd'

-- How many members of a sorted set come before a rank; or_equal counts the rank itself too.
local function place_in(key, priority, seq, or_equal)
  local score, member = fmt('%.17g', priority), F.member(seq)
  local low = call('ZCOUNT', key, '-inf', '(' .. score)
  local high = low + call('ZCOUNT', key, score, score)
  while low < high do
    local middle = floor((low + high) / 2)
    local other = call('ZRANGE', key, middle, middle)[1]
    if other < member or or_equal and other == member then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- How many members come before a rank.
function F.place_before(key, priority, seq)
  return place_in(key, priority, seq, false)
end

-- The place of the first member after a rank.
function F.place_after(key, priority, seq)
  return priority > -math.huge and place_in(key, priority, seq, true) or 0
end

local function take_best(D, key)
  local from, leases = 0, D.leases
  while #leases < D.max and not D.stopped do
    local wanted = D.max - #leases
    local sequences = F.read_members(call('ZRANGE', key, from, from + wanted - 1))
    for i = 1, #sequences do
      F.take(F.whole_message(sequences[i]), D)
      if D.stopped then
        return
      end
    end
    if #sequences < wanted then
      return
    end
    from = from + wanted
  end
end

-- Sets a value aside whose messages in flight are at their limit.
local function hide(D, P, value)
  if D.parkings_left == 0 then
    D.stopped = true
  else
    D.parkings_left = D.parkings_left - 1
    F.hide_lane(P, value)
  end
end

local function take_best_heads(D, P)
  while #D.leases < D.max and not D.stopped do
    local head = F.next_head(P)
    if not head then
      return
    end
    local M = F.whole_message(head[2])
    if F.may_serve(M) then
      F.take(M, D)
    else
      hide(D, P, F.routing_hash(M))
    end
  end
end

-- The messages of a simple queue after a rank, one at a time.
local function by_rank(key, C)
  local place, page, at = C.after and F.place_after(key, C.after[1], C.after[2]) or 0, {}, 0
  return function()
    if at >= #page / 2 then
      page, at = call('ZRANGE', key, place, place + WALK_PAGE - 1, 'WITHSCORES'), 0
      place = place + WALK_PAGE
    end
    if #page > 0 then
      at = at + 1
      C.after = {tonumber(page[at * 2]), F.sequence_of(page[at * 2 - 1])}
      return F.whole_message(C.after[2])
    end
  end
end

-- The messages of an exclusive queue that may be served.
local function by_value(D, P, C)
  return function()
    while true do
      local inside = C.inside
      C.inside = nil
      local rank = inside and F.next_in_lane(P, inside.value, inside.after)
      local M = rank and F.whole_message(rank[2])
      if M and F.may_serve(M) then
        C.inside = {value = inside.value, text = inside.text, after = rank}
        return M
      end
      local head = F.next_head(P, C.after)
      if not head then
        return nil
      end
      M = F.whole_message(head[2])
      local value, text = F.routing(M)
      if F.may_serve(M) then
        C.inside, C.after = {value = value, text = text, after = {-math.huge, 0}}, head
      else
        hide(D, P, value)
        if D.stopped then
          return nil
        end
      end
    end
  end
end

-- A cursor of a request: value and rank, then the text of the value, which the reply tells again.
local function unpack_cursor(raw)
  if not raw then
    return {since = S.now}
  end
  local C = {}
  local priority, seq, has_inside, at
  priority, seq, C.since, has_inside, at = parse(CURSOR, raw)
  C.after = priority > -math.huge and {priority, seq} or nil
  if has_inside == 1 then
    local inside = {}
    local inside_priority, inside_seq
    inside.value, inside_priority, inside_seq, at = parse(INSIDE, raw, at)
    inside.after, inside.text = {inside_priority, inside_seq}, sub(raw, at)
    C.inside = inside
  end
  return C
end

local function pack_cursor(C)
  local after, inside = C.after or {-math.huge, 0}, C.inside
  local packed = pack(CURSOR, after[1], after[2], C.since, inside and 1 or 0)
  if inside then
    packed = packed .. pack('<ddH', inside.after[1], inside.after[2], #inside.text) .. inside.text
  end
  return packed
end

-- Examines messages from the cursor on. Returns the new cursor, if it did not reach the end.
local function walk(D, key, P)
  local C = unpack_cursor(D.cursor)
  local next_message = P and by_value(D, P, C) or by_rank(key, C)
  while #D.leases < D.max do
    local before = {after = C.after, inside = C.inside, since = C.since}
    local M = next_message()
    if not M and D.stopped then
      return pack_cursor(before)
    elseif not M then
      -- Messages that moved before the cursor were missed; only a new walk can find them.
      local is_behind = D.cursor and S.H.moved >= C.since
      return is_behind and pack_cursor({since = S.now}) or nil
    elseif D.seen == D.look_at then
      return pack_cursor(before)
    end
    D.seen = D.seen + 1
    if F.matches(M, D.filter) then
      F.take(M, D)
      if D.stopped then
        return pack_cursor(before)
      end
    end
  end
end

-- The best message that meets a filter, as an index says.
function F.best_of(filter)
  local name, is_exact = F.source(filter)
  if not is_exact then
    return nil
  end
  local key = S.P.exclusive and 'q' .. name or name == '' and 'p' or 'y' .. name
  local member = call('ZRANGE', S.tag .. key, 0, 0)[1]
  local M = member and F.whole_message(F.sequence_of(member))
  return M and F.may_serve(M) and M or nil
end

-- Leases what a dequeue asks for. Returns the cursor of a walk that is not at its end.
function F.choose(D)
  local name, is_exact = F.source(D.filter)
  if not name then
    return nil
  end
  local P, key = S.P.exclusive and F.place(name), S.tag .. (name == '' and 'p' or 'y' .. name)
  if not is_exact then
    return walk(D, key, P)
  elseif P then
    take_best_heads(D, P)
  else
    take_best(D, key)
  end
end
