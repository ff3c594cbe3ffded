-- Messages that are finished for good: completed and canceled ones. They keep what repeats and readers need, without the body.
--
-- A hash of its own for each of them would cost more than what is in it. So those of FINISHED_PAGE neighbouring sequences lie in
-- one hash, fm<page>, which stays small enough to be a listpack. Its fields are the place in the page; a value is the end of
-- the retention, the size of the head, the head and the static part. In g a page stands with the earliest end in it, as 13 hex
-- digits and an f; messages that failed for good stand there by themselves.

local FINISHED_PAGE = 64
local TIES_MAX = 64
local FINISHED_HEAD = '<dH'
local FINISHED_HEAD_BYTES = 10

-- Whether a message is finished for good: an errored one may be redriven.
function F.is_over(state)
  return state == STATE.Completed or state == STATE.Canceled
end

local function page_key(page)
  return fmt(S.K.finished_key, page)
end

local function page_member(page)
  return fmt('%013xf', page)
end

local function place_of(seq)
  local place = seq % FINISHED_PAGE
  return (seq - place) / FINISHED_PAGE, place
end

local function head_and_static(raw)
  local _, size = parse(FINISHED_HEAD, raw)
  return sub(raw, FINISHED_HEAD_BYTES + 1, FINISHED_HEAD_BYTES + size), sub(raw, FINISHED_HEAD_BYTES + size + 1)
end

-- The head and the static part of a finished message; nil if there is none.
function F.read_finished(seq)
  local page, field = place_of(seq)
  local raw = S.old and S.old[seq] or call('HGET', page_key(page), field)
  if raw then
    return head_and_static(raw)
  end
end

-- Notes what becomes of a message that is or was finished. pages has what the end of the flush writes to g.
function F.store_finished(put, pages, M)
  local page, place = place_of(M.seq)
  local key, known = page_key(page), pages[page]
  if not known then
    known = {key = key, removed = 0, earliest = false}
    pages[page] = known
  end
  if M.gone then
    put('HDEL', key, place)
    known.removed = known.removed + 1
  else
    local head, at = F.pack_message(M), M.delete_at
    put('HSET', key, place, pack(FINISHED_HEAD, at, #head) .. head .. M.s)
    known.earliest = known.earliest and known.earliest < at and known.earliest or at
  end
end

-- The earliest end in a page after messages of it were removed. left: what was seen of it before, if it was read.
local function earliest_in(known, left)
  if left and left.due == known.removed and not known.earliest then
    return left.earliest
  end
  local values, earliest = call('HVALS', known.key), nil
  for j = 1, #values do
    local at = parse('<d', values[j])
    earliest = earliest and earliest < at and earliest or at
  end
  return earliest
end

-- Writes the earliest ends of pages, after the messages were written.
function F.write_finished(pages)
  local g = S.keys.g
  for page, known in pairs(pages) do
    local member = page_member(page)
    if known.removed > 0 then
      local earliest = earliest_in(known, S.old_pages and S.old_pages[page])
      if earliest then
        call('ZADD', g, earliest, member)
      else
        call('ZREM', g, member)
      end
      S.heads.g = nil
    else
      call('ZADD', g, 'LT', known.earliest, member)
      F.index_add('g', known.earliest)
    end
  end
  S.old_pages = false
end

-- Reads the messages of a page whose retention is over, and notes how many these are and the earliest end of the others.
local function read_old(page, found)
  S.old = S.old or {}
  local ends = S.old
  local parts, due, earliest = call('HGETALL', page_key(page)), 0, nil
  for j = 1, #parts, 2 do
    local raw = parts[j + 1]
    local at = parse('<d', raw)
    if at <= S.now then
      local seq = page * FINISHED_PAGE + tonumber(parts[j])
      due = due + 1
      found[#found + 1] = {at, seq}
      ends[seq] = raw
    else
      earliest = earliest and earliest < at and earliest or at
    end
  end
  S.old_pages = S.old_pages or {}
  S.old_pages[page] = {due = due, earliest = earliest}
end

local function is_earlier(a, b)
  return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
end

-- Most often they are in order as they were read.
local function sort_ends(found)
  for i = 2, #found do
    if is_earlier(found[i], found[i - 1]) then
      sort(found, is_earlier)
      return
    end
  end
end

-- Whether so many ends were found that lie before a time: then what is not before it need not be read.
local function has_earlier(found, most, time)
  local count = 0
  for i = 1, #found >= most and #found or 0 do
    count = count + (found[i][1] < time and 1 or 0)
  end
  return count >= most
end

-- The sequences of up to most messages whose retention is over, in the order of its ends. Of equal ends the lower sequence
-- comes first, as far as they are among TIES_MAX more.
function F.old_messages(most)
  local found, g, first = {}, S.keys.g, F.head_of('g')
  if not first or first > S.now then
    return found
  end
  local members = call('ZRANGEBYSCORE', g, '-inf', S.now, 'WITHSCORES', 'LIMIT', 0, most)
  if #members == 2 * most then
    local last = members[#members]
    while #members > 0 and members[#members] == last do
      members[#members], members[#members - 1] = nil, nil
    end
    local equal = call('ZRANGEBYSCORE', g, last, last, 'WITHSCORES', 'LIMIT', 0, most + TIES_MAX)
    for i = 1, #equal do
      members[#members + 1] = equal[i]
    end
  end
  for i = 1, #members, 2 do
    local number, score = F.sequence_of(members[i]), tonumber(members[i + 1])
    if has_earlier(found, most, score) then
      break
    elseif #members[i] == 13 then
      found[#found + 1] = {score, number}
    else
      read_old(number, found)
    end
  end
  sort_ends(found)
  local sequences = {}
  for i = 1, math.min(most, #found) do
    sequences[i] = found[i][2]
  end
  return sequences
end

-- The keys of the finished messages among the sequences of a page of states.
function F.finished_keys(page)
  local keys, first = {}, page * PAGE / FINISHED_PAGE
  for i = 1, PAGE / FINISHED_PAGE do
    keys[i] = page_key(first + i - 1)
  end
  return keys
end
