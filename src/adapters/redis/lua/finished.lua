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
  return S.tag .. 'fm' .. fmt('%.0f', page)
end

local function page_member(page)
  return fmt('%013xf', page)
end

local function place_of(seq)
  return floor(seq / FINISHED_PAGE), fmt('%.0f', seq % FINISHED_PAGE)
end

-- The head and the static part of a finished message; nil if there is none.
function F.read_finished(seq)
  local page, field = place_of(seq)
  local raw = call('HGET', page_key(page), field)
  if raw then
    local _, size = parse(FINISHED_HEAD, raw)
    return sub(raw, FINISHED_HEAD_BYTES + 1, FINISHED_HEAD_BYTES + size), sub(raw, FINISHED_HEAD_BYTES + size + 1)
  end
end

-- Notes what becomes of a message that is or was finished. pages has what the end of the flush writes to g.
function F.store_finished(put, pages, M)
  local page, field = place_of(M.seq)
  local known = pages.of[page]
  if not known then
    known = {number = page}
    pages.of[page] = known
    pages[#pages + 1] = known
  end
  if M.gone then
    put('HDEL', page_key(page), field)
    known.removed = true
  else
    local head = F.pack_message(M)
    put('HSET', page_key(page), field, pack(FINISHED_HEAD, M.delete_at, #head) .. head .. F.static(M))
    known.earliest = math.min(known.earliest or M.delete_at, M.delete_at)
  end
end

-- Writes the earliest ends of pages, after the messages were written.
function F.write_finished(pages)
  local g = S.tag .. 'g'
  for i = 1, #pages do
    local known = pages[i]
    local member = page_member(known.number)
    if known.removed then
      local values, earliest = call('HVALS', page_key(known.number)), nil
      for j = 1, #values do
        local at = parse('<d', values[j])
        earliest = earliest and math.min(earliest, at) or at
      end
      if earliest then
        call('ZADD', g, earliest, member)
      else
        call('ZREM', g, member)
      end
    else
      call('ZADD', g, 'LT', known.earliest, member)
    end
  end
end

-- The sequences of up to most messages whose retention is over, in the order of its ends. Of equal ends the lower sequence
-- comes first, as far as they are among TIES_MAX more.
function F.old_messages(most)
  local found, g = {}, S.tag .. 'g'
  local members = call('ZRANGEBYSCORE', g, '-inf', fmt('%.0f', S.now), 'WITHSCORES', 'LIMIT', 0, most)
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
    local number = F.sequence_of(members[i])
    if #members[i] == 13 then
      found[#found + 1] = {tonumber(members[i + 1]), number}
    else
      local parts = call('HGETALL', page_key(number))
      for j = 1, #parts, 2 do
        local at = parse('<d', parts[j + 1])
        if at <= S.now then
          found[#found + 1] = {at, number * FINISHED_PAGE + tonumber(parts[j])}
        end
      end
    end
  end
  sort(found, function(a, b)
    return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
  end)
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
