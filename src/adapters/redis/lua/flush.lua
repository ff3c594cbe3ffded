-- The second phase: messages that changed, and the indexes, which are functions of them.
--
-- p: pending messages by priority. d: timers of what is not finished, and ends of sessions. g: ends of retention. a, ac: the
-- minutes since which messages are pending, with their numbers. st<page>: one byte of state for each sequence, behind the
-- number of messages of the page. pg: the pages. Members are the sequence in 6 bytes, highest first, so equal scores keep its order.

-- Writes of one command to one key are put together, unless there is one message only: then they are made at once.
local lists, order, is_alone
local finished -- what the end of the flush writes of pages of finished messages

local function put(command, key, field, value)
  if is_alone then
    if value ~= nil then
      call(command, key, field, value)
    else
      call(command, key, field)
    end
    return
  end
  local of_command = lists[command]
  if not of_command then
    of_command = {}
    lists[command] = of_command
  end
  local list = of_command[key]
  if not list then
    list = {command, key}
    of_command[key], order[#order + 1] = list, list
  end
  local count = #list
  list[count + 1] = field
  if value ~= nil then
    list[count + 2] = value
  end
end

-- One index that orders members by a score: what it has to change for a message. M: the message, for the index of pending ones.
local function reindex(name, member, before, after, M)
  if after and after ~= before then
    put('ZADD', S.keys[name], after, member)
    if before then
      F.index_remove(name, before)
    end
    if M then
      F.enter_pending(M)
    else
      F.index_add(name, after)
    end
  elseif before and not after then
    put('ZREM', S.keys[name], member)
    F.index_remove(name, before)
  end
end

local function session_index(M, member, was, session, confirmed, cancel)
  local tag = S.tag
  local before = was.session and (was.confirmed and 'f' or 'u') .. was.session
  local after = session and (confirmed and 'f' or 'u') .. session
  if before ~= after then
    if before then
      put('ZREM', tag .. before, member)
    end
    if after then
      put('ZADD', tag .. after, M.seq, member)
    end
  end
  local asked_before, asked_after = was.cancel and was.session, cancel and session
  if asked_before ~= asked_after then
    if asked_before then
      put('ZREM', tag .. 'x' .. asked_before, member)
    end
    if asked_after then
      put('ZADD', tag .. 'x' .. asked_after, M.seq, member)
    end
  end
end

-- Writes all parts of a message that was not there.
local function store_new(M)
  local key, place = F.home_of(M.seq)
  local head, static, body = F.pack_message(M), M.s, M.b
  if not is_alone then
    put('HSET', key, FIELD_H[place], head)
    put('HSET', key, FIELD_S[place], static)
    if body ~= '' then
      put('HSET', key, FIELD_B[place], body)
    end
  elseif body == '' then
    call('HSET', key, FIELD_H[place], head, FIELD_S[place], static)
  else
    call('HSET', key, FIELD_H[place], head, FIELD_S[place], static, FIELD_B[place], body)
  end
end

local function unstore(M)
  local key, place = F.home_of(M.seq)
  if is_alone then
    call('HDEL', key, FIELD_H[place], FIELD_S[place], FIELD_B[place])
    return
  end
  put('HDEL', key, FIELD_H[place])
  put('HDEL', key, FIELD_S[place])
  put('HDEL', key, FIELD_B[place])
end

-- Writes the head of a message, and what an update replaced.
local function store_changed(M)
  local key, place = F.home_of(M.seq)
  put('HSET', key, FIELD_H[place], F.pack_message(M))
  if M.has_new_static then
    put('HSET', key, FIELD_S[place], M.s)
  end
  if M.has_new_body and M.b == '' then
    put('HDEL', key, FIELD_B[place])
  elseif M.has_new_body then
    put('HSET', key, FIELD_B[place], M.b)
  end
end

local function store(M, state)
  local is_over, was_over = F.is_over(M.state), F.is_over(state)
  if was_over or (is_over and not M.gone) then
    finished = finished or {}
    F.store_finished(put, finished, M)
    if not was_over and not M.new then
      unstore(M) -- nobody gets its body any more
    end
  elseif M.gone then
    unstore(M)
  elseif M.new then
    store_new(M)
  else
    store_changed(M)
  end
end

-- Adds nothing to the last state of a page. A new page gets its whole size by it: a string that grows takes twice its size.
local WHOLE_PAGE, NOTHING = {'INCRBY', 'u8', '#' .. (PAGE_HEAD + PAGE - 1), '0'}, {}

-- Writes the state of a message, or of neighbours, in their page. added: by how many the messages of the page grow.
local function write_state(page, added, first, states)
  local key, keys = fmt(S.K.page_key, page), S.keys
  if added == 0 then
    call('SETRANGE', key, PAGE_HEAD + first, states)
    return
  end
  local count
  if #states > 1 or first == 0 then
    count = call('BITFIELD', key, 'INCRBY', 'u32', '0', added, spread(first == 0 and WHOLE_PAGE or NOTHING))[1]
    call('SETRANGE', key, PAGE_HEAD + first, states)
  else
    count = call('BITFIELD', key, 'INCRBY', 'u32', '0', DIGITS[added] or added, 'SET', 'u8', fmt('#%d', PAGE_HEAD + first),
      DIGITS[byte(states)])[1]
  end
  if count == 0 then
    call('UNLINK', key)
    call('ZREM', keys.pg, page)
  elseif count == added then
    call('ZADD', keys.pg, page, page)
  end
end

-- The last neighbours whose states changed, until they are written.
local run_page, run_first, run_added, run

local function end_run()
  if run then
    write_state(run_page, run_added, run_first, char(spread(run)))
    run = nil
  end
end

-- Notes the state of a message; those of neighbours are written together.
local function note_state(M, is_new)
  local seq = M.seq
  local at, gone = seq % PAGE, M.gone
  local page, added = (seq - at) / PAGE, (is_new and 1 or 0) - (gone and 1 or 0)
  local state = gone and 0 or M.state + 1
  if is_alone then
    write_state(page, added, at, char(state))
    return
  end
  if run and run_page == page and run_first + #run == at then
    run[#run + 1], run_added = state, run_added + added
    return
  end
  end_run()
  run_page, run_first, run_added, run = page, at, added, {state}
end

-- Counts the messages that are pending since a minute.
local function write_minute(minute, change)
  local keys = S.keys
  local count = call('HINCRBY', keys.ac, minute, DIGITS[change] or change)
  if count == 0 then
    call('HDEL', keys.ac, minute)
    call('ZREM', keys.a, minute)
    F.index_remove('a', minute)
  elseif count == change then
    call('ZADD', keys.a, minute, minute)
    F.index_add('a', minute)
  end
end

local minutes

local function count_minute(minute, change)
  if is_alone then
    write_minute(minute, change)
  else
    minutes[minute] = (minutes[minute] or 0) + change
  end
end

-- Writes a message that waits for the first time.
local function write_new(M)
  local member, due = F.member(M.seq), M.ttl_at
  store_new(M)
  if M.state == STATE.Pending then
    reindex('p', member, nil, M.priority, M)
    count_minute(floor(M.visible_at / LIMIT.minute), 1)
  elseif not due or M.visible_at < due then
    due = M.visible_at
  end
  if due then
    reindex('d', member, nil, due)
  end
  note_state(M, true)
  M.was, M.new = nil, nil
end

-- Writes a message that changed and its indexes, or notes what is written with its neighbours.
local function write_message(M)
  if M.new and M.state <= STATE.Pending then
    return write_new(M)
  end
  local was, member = M.was, F.member(M.seq)
  local state, pending, minute, due, gone, session, confirmed, cancel = F.places_after(M)
  local state_before, minute_before = was.state, was.minute
  store(M, state_before)
  if was.pending or pending then
    reindex('p', member, was.pending, pending, M)
  end
  if was.due or due then
    reindex('d', member, was.due, due)
  end
  -- The end of the retention of a message that is finished for good stands in g with its page.
  local ends_before, ends = was.gone and state_before == STATE.Errored and was.gone, state == STATE.Errored and gone
  if ends_before or ends then
    reindex('g', member, ends_before, ends)
  end
  if was.session or session then
    session_index(M, member, was, session, confirmed, cancel)
  end
  if state_before ~= state then
    note_state(M, state_before == nil)
  end
  if minute_before ~= minute then
    if minute_before then
      count_minute(minute_before, -1)
    end
    if minute then
      count_minute(minute, 1)
    end
  end
  M.was, M.new, M.has_new_static, M.has_new_body = nil, nil, nil, nil
end

local function write_dirty(dirty)
  local count = dirty and #dirty or 0
  is_alone, run, finished, lists, order, minutes = count == 1, nil, nil, nil, nil, nil -- whatever an error left there
  if not is_alone then
    lists, order, minutes = {}, {}, {}
  end
  for i = 1, count do
    write_message(dirty[i])
  end
  if S.has_lanes then
    F.write_lanes(put)
  end
  if S.has_groups then
    F.write_groups(put)
  end
  for i = 1, order and #order or 0 do
    call(spread(order[i]))
  end
  end_run()
  if minutes then
    for minute, change in pairs(minutes) do
      if change ~= 0 then
        write_minute(minute, change)
      end
    end
  end
  if finished then
    F.write_finished(finished)
  end
end

-- Writes the messages that changed, their indexes and their sessions. The indexes can be read again after it.
function F.flush()
  local dirty, later = S.dirty, S.later
  if dirty or later or S.has_lanes or S.has_groups then
    if S.has_lanes then
      F.settle_lanes()
      later = S.later
    end
    F.begin()
    S.dirty, S.later = false, false
    write_dirty(dirty)
    for i = 1, later and #later or 0 do
      call(spread(later[i]))
    end
  end
  if S.held or S.places or S.groups then
    S.held, S.places, S.groups, S.has_lanes, S.has_groups = false, false, false, false, false -- they are read again
  end
  if S.new_ids or S.tb then
    F.flush_ids()
  end
  if S.sessions then
    F.flush_sessions()
  end
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
  local pages = call('ZRANGEBYSCORE', tag .. 'pg', fmt('%d', floor((after + 1) / PAGE)), fmt('%d', floor(through / PAGE)),
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
