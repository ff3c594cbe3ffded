-- The second phase: messages that changed, and the indexes, which are functions of them.
--
-- p: pending messages by priority. d: timers of what is not finished, and ends of sessions. g: ends of retention. a, ac: the
-- minutes since which messages are pending, with their numbers. st<page>: one byte of state for each sequence, behind the
-- number of messages of the page. pg: the pages. Members are 13 hex digits of the sequence, so equal scores keep its order.

-- Collects members for one write at the end.
local function collector()
  local lists = {}
  return function(command, key, ...)
    local name = command .. key
    local list = lists[name]
    if not list then
      list = {command, key}
      lists[name] = list
      lists[#lists + 1] = list
    end
    for i = 1, select('#', ...) do
      list[#list + 1] = select(i, ...)
    end
  end, lists
end

-- One index that orders members by a score: what it has to change for a message.
local function reindex(put, key, member, before, after)
  if after and after ~= before then
    put('ZADD', key, after, member)
  elseif before and not after then
    put('ZREM', key, member)
  end
end

local function session_index(put, M, member, was, is)
  local tag = S.tag
  local before = was.session and (was.confirmed and 'f' or 'u') .. was.session
  local after = is.session and (is.confirmed and 'f' or 'u') .. is.session
  if before ~= after then
    if before then
      put('ZREM', tag .. before, member)
    end
    if after then
      put('ZADD', tag .. after, M.seq, member)
    end
  end
  local asked_before, asked_after = was.cancel and was.session, is.cancel and is.session
  if asked_before ~= asked_after then
    if asked_before then
      put('ZREM', tag .. 'x' .. asked_before, member)
    end
    if asked_after then
      put('ZADD', tag .. 'x' .. asked_after, M.seq, member)
    end
  end
end

local function store(put, finished, M, was)
  local key = F.key_of(M.seq)
  local is_over, was_over = F.is_over(M.state), was.state ~= nil and F.is_over(was.state)
  if was_over or (is_over and not M.gone) then
    F.store_finished(put, finished, M)
    if not was_over and not M.new then
      call('UNLINK', key) -- nobody gets its body any more
    end
  elseif M.gone then
    call('UNLINK', key)
  elseif M.new then
    if M.b == '' then
      call('HSET', key, 'h', F.pack_message(M), 's', M.s)
    else
      call('HSET', key, 'h', F.pack_message(M), 's', M.s, 'b', M.b)
    end
  else
    call('HSET', key, 'h', F.pack_message(M))
  end
end

-- The end of the retention of a message that stands in g by itself.
local function own_end(place)
  return place.state ~= nil and not F.is_over(place.state) and place.gone or nil
end

-- Notes the state of a message for its page; neighbours of a page are written together.
local function note_state(pages, M, was)
  local page, at = floor(M.seq / PAGE), M.seq % PAGE
  local known = pages.of[page]
  if not known then
    known = {number = page, added = 0}
    pages.of[page] = known
    pages[#pages + 1] = known
  end
  known.added = known.added + (M.gone and -1 or 0) + (was.state == nil and 1 or 0)
  local run = known[#known]
  local state = char(M.gone and 0 or M.state + 1)
  if run and run.at + run.size == at then
    run[#run + 1], run.size = state, run.size + 1
  else
    known[#known + 1] = {state, at = at, size = 1}
  end
end

local function write_pages(pages)
  local tag = S.tag
  for i = 1, #pages do
    local known = pages[i]
    local key = tag .. 'st' .. fmt('%.0f', known.number)
    local count = 0
    if known.added ~= 0 then
      local head = call('GETRANGE', key, 0, PAGE_HEAD - 1)
      local before = #head == PAGE_HEAD and parse('<I4', head) or 0
      count = before + known.added
      if count <= 0 then
        call('UNLINK', key)
        call('ZREM', tag .. 'pg', fmt('%.0f', known.number))
      else
        if before == 0 then
          call('ZADD', tag .. 'pg', known.number, fmt('%.0f', known.number))
        end
        call('SETRANGE', key, 0, pack('<I4', count))
      end
    end
    if known.added == 0 or count > 0 then
      for j = 1, #known do
        call('SETRANGE', key, PAGE_HEAD + known[j].at, concat(known[j]))
      end
    end
  end
end

local function write_minutes(minutes)
  local tag = S.tag
  for minute, change in pairs(minutes) do
    if change ~= 0 then
      local member = fmt('%.0f', minute)
      local count = call('HINCRBY', tag .. 'ac', member, change)
      if count == 0 then
        call('HDEL', tag .. 'ac', member)
        call('ZREM', tag .. 'a', member)
      elseif count == change then
        call('ZADD', tag .. 'a', minute, member)
      end
    end
  end
end

-- Writes the messages that changed, their indexes and their sessions. The indexes can be read again after it.
function F.flush()
  local dirty = S.dirty
  if #dirty > 0 or #S.later > 0 or S.has_lanes or S.has_groups then
    F.settle_lanes()
    F.begin()
    local put, lists = collector()
    local pages, minutes, finished, tag = {of = {}}, {}, {of = {}}, S.tag
    S.dirty = {}
    for i = 1, #dirty do
      local M = dirty[i]
      local was, is, member = M.was, F.places_after(M), F.member(M.seq)
      store(put, finished, M, was)
      reindex(put, tag .. 'p', member, was.pending, is.pending)
      reindex(put, tag .. 'd', member, was.due, is.due)
      reindex(put, tag .. 'g', member, own_end(was), own_end(is))
      session_index(put, M, member, was, is)
      if was.state ~= is.state then
        note_state(pages, M, was)
      end
      if was.minute ~= is.minute then
        if was.minute then
          minutes[was.minute] = (minutes[was.minute] or 0) - 1
        end
        if is.minute then
          minutes[is.minute] = (minutes[is.minute] or 0) + 1
        end
      end
      M.was, M.new = nil, nil
    end
    F.write_lanes(put)
    F.write_groups(put)
    for i = 1, #lists do
      call(spread(lists[i]))
    end
    F.write_finished(finished)
    write_pages(pages)
    write_minutes(minutes)
    for i = 1, #S.later do
      call(spread(S.later[i]))
    end
    S.later = {}
  end
  S.held, S.places, S.groups, S.has_lanes, S.has_groups = {}, {}, {}, false, false -- they are read again
  F.flush_ids()
  F.flush_sessions()
end

-- The first message of these states after a sequence, at most through another: its sequence, and where the search stopped if
-- it found none within the pages that one call may read. states: a set of letters for a pattern.
function F.first_of(states, after, through, pages_left)
  local tag = S.tag
  local function found_in(page, raw)
    local at = string.find(raw, states, PAGE_HEAD + 1 + math.max(0, after + 1 - page * PAGE))
    return at and page * PAGE + at - PAGE_HEAD - 1
  end
  local near = floor((after + 1) / PAGE)
  local seq = S.pages and S.pages[near] and found_in(near, S.pages[near]) -- the page of the search before
  if seq then
    return seq <= through and seq or nil
  end
  local pages = call('ZRANGEBYSCORE', tag .. 'pg', fmt('%.0f', floor((after + 1) / PAGE)), fmt('%.0f', floor(through / PAGE)),
    'LIMIT', 0, pages_left)
  for i = 1, #pages do
    local page = tonumber(pages[i])
    local raw = S.pages and S.pages[page] or call('GET', tag .. 'st' .. pages[i])
    S.pages = S.pages or {}
    S.pages[page] = raw
    seq = found_in(page, raw)
    if seq then
      return seq <= through and seq or nil
    end
  end
  if #pages == pages_left then
    return nil, tonumber(pages[#pages]) * PAGE + PAGE - 1
  end
end

-- A pattern of state bytes.
function F.state_pattern(...)
  local letters = {}
  for i = 1, select('#', ...) do
    letters[i] = char(select(i, ...) + 1)
  end
  return '[' .. concat(letters) .. ']'
end
