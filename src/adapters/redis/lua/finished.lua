-- Messages that are finished for good: completed and canceled ones. They keep what repeats and readers need, without the body.
--
-- A hash of its own for each of them would cost more than what is in it. So those of FINISHED_PAGE neighbouring sequences lie in
-- one hash, fm<page>, which stays small enough to be a listpack. Its fields are the place in the page. In g a page stands with the
-- earliest end of a retention in it, as a member and an f; messages that failed for good stand there by themselves.
--
-- A value begins with the times: the enqueue, the microseconds from there to the end, the seconds of the retention. Then comes the
-- form. Most messages have a brief one: small numbers in few bytes, and nothing twice; its bits say which parts follow. 59 bytes and
-- fewer, as of a message without metadata that ended within the hour, take 64 bytes of memory, and up to 72 take 80. Whatever does
-- not fit has the form 0: the end of the retention as the first time, and the head as it was.

local FINISHED_PAGE = 64
local TIES_MAX = 64
local TIMES = '<I7I4I3H'
local WHOLE, WHOLE_HEAD = 0, '<I7I4I3HH'
-- Times and form; attempts at most, version, size, epoch.
local BRIEF_HEAD = '<I7I4I3HBBHI4'
-- HAS_LONG: the upper bytes of the times to the end and to the first lease. HAS_LEFT: other than all attempts but one are left.
local IS_BRIEF, HAS_LONG, HAS_PRIORITY, HAS_COUNTED, HAS_LEASED, HAS_SETTLEMENT, HAS_OPTIONS, HAS_LEFT, IS_CANCELED,
  WAS_INVISIBLE, BY_CANCEL = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024
local HIGH, LONGEST = 2 ^ 32, 2 ^ 40 -- 71 minutes, 12 days
local SECOND, RETENTION_MAX = 1000000, 2 ^ 24

-- Whether a message is finished for good: an errored one may be redriven.
function F.is_over(state)
  return state == STATE.Completed or state == STATE.Canceled
end

local function page_key(page)
  return fmt(S.K.finished_key, page)
end

local function page_member(page)
  return F.member(page) .. 'f'
end

local function place_of(seq)
  local place = seq % FINISHED_PAGE
  return (seq - place) / FINISHED_PAGE, place
end

local function is_between(number, least, above)
  return number >= least and number < above
end

-- Whether a message fits the brief form.
local function fits(M, lasted, leased, kept)
  local settled = M.settled
  if settled and (settled.epoch ~= M.epoch or settled.state ~= M.state or settled.version ~= M.version
      or settled.serial >= HIGH or (settled.verb ~= VERB.Complete and settled.verb ~= VERB.Cancel)) then
    return false
  end
  return M.releases == 0 and (M.first_state == STATE.Pending or M.first_state == STATE.Invisible)
    and M.max < 256 and M.left < 256 and M.version < 256 and M.bytes < 65536 and M.enqueued_at >= 0
    and is_between(lasted, 0, LONGEST) and is_between(leased, 0, LONGEST)
    and kept == floor(kept) and is_between(kept, 0, RETENTION_MAX)
end

-- The parts that follow a brief head, and the bits that say so.
local function pack_parts(M, lasted, leased)
  local form, parts, settled = IS_BRIEF, '', M.settled
  if lasted >= HIGH or leased >= HIGH then
    form, parts = form + HAS_LONG, char(floor(lasted / HIGH), floor(leased / HIGH))
  end
  if M.priority ~= floor(M.enqueued_at / 1000) then
    form, parts = form + HAS_PRIORITY, parts .. pack('<d', M.priority)
  end
  if M.key_set ~= 0 or M.counted ~= 0 then
    form, parts = form + HAS_COUNTED, parts .. char(M.key_set, M.counted)
  end
  if M.first_leased_at then
    form, parts = form + HAS_LEASED, parts .. pack('<I4', leased % HIGH)
  end
  if settled then
    form, parts = form + HAS_SETTLEMENT + (settled.verb == VERB.Cancel and BY_CANCEL or 0), parts .. pack('<I4', settled.serial)
  end
  if M.left ~= M.max - 1 then
    form, parts = form + HAS_LEFT, parts .. char(M.left)
  end
  local flags, options = F.pack_options(M, true)
  if flags > 0 then
    form, parts = form + HAS_OPTIONS, parts .. pack('<H', flags) .. options
  end
  return form + (M.state == STATE.Canceled and IS_CANCELED or 0) + (M.first_state == STATE.Invisible and WAS_INVISIBLE or 0), parts
end

local function pack_finished(M)
  local lasted, leased = M.ended_at - M.enqueued_at, (M.first_leased_at or M.enqueued_at) - M.enqueued_at
  local kept = (M.delete_at - M.ended_at) / SECOND
  if not fits(M, lasted, leased, kept) then
    local head = F.pack_message(M)
    return pack(WHOLE_HEAD, M.delete_at, 0, 0, WHOLE, #head) .. head .. M.s
  end
  local form, parts = pack_parts(M, lasted, leased)
  return pack(BRIEF_HEAD, M.enqueued_at, lasted % HIGH, kept, form, M.max, M.version, M.bytes,
    M.epoch) .. parts .. M.s
end

-- The end of the retention of a stored message.
local function end_of(raw)
  local enqueued_at, lasted, kept, form, at = parse(TIMES, raw)
  if F.has_flag(form, HAS_LONG) then
    lasted = lasted + HIGH * byte(raw, at + 8)
  end
  return enqueued_at + lasted + kept * SECOND
end

-- Reads the parts that follow a brief head, and answers where they end.
local function unpack_parts(M, form, raw, at)
  local long = 0
  if F.has_flag(form, HAS_LONG) then
    long, at = HIGH * byte(raw, at + 1), at + 2
  end
  if F.has_flag(form, HAS_PRIORITY) then
    M.priority, at = parse('<d', raw, at)
  end
  if F.has_flag(form, HAS_COUNTED) then
    M.key_set, M.counted, at = parse('<BB', raw, at)
  end
  if F.has_flag(form, HAS_LEASED) then
    local leased
    leased, at = parse('<I4', raw, at)
    M.first_leased_at = M.enqueued_at + long + leased
  end
  if F.has_flag(form, HAS_SETTLEMENT) then
    local serial
    serial, at = parse('<I4', raw, at)
    local verb = F.has_flag(form, BY_CANCEL) and VERB.Cancel or VERB.Complete
    M.settled = {epoch = M.epoch, serial = serial, verb = verb, state = M.state, version = M.version}
  end
  if F.has_flag(form, HAS_LEFT) then
    M.left, at = byte(raw, at), at + 1
  end
  if F.has_flag(form, HAS_OPTIONS) then
    local flags
    flags, at = parse('<H', raw, at)
    at = F.unpack_options(M, flags, raw, at)
  end
  return at
end

local function unpack_brief(seq, raw)
  local enqueued_at, _, kept, form, most, version, bytes, epoch, at = parse(BRIEF_HEAD, raw)
  local M = {
    seq = seq, b = '', state = F.has_flag(form, IS_CANCELED) and STATE.Canceled or STATE.Completed,
    first_state = F.has_flag(form, WAS_INVISIBLE) and STATE.Invisible or STATE.Pending, left = most - 1, max = most,
    version = version, bytes = bytes, epoch = epoch, key_set = 0, counted = 0, priority = floor(enqueued_at / 1000),
    enqueued_at = enqueued_at, visible_at = enqueued_at, releases = 0, delete_at = end_of(raw),
  }
  M.ended_at = M.delete_at - kept * SECOND
  M.s = sub(raw, unpack_parts(M, form, raw, at))
  return M
end

-- A finished message; nil if there is none.
function F.read_finished(seq)
  local page, field = place_of(seq)
  local raw = S.old and S.old[seq] or call('HGET', page_key(page), field)
  if not raw then
    return nil
  end
  local _, _, _, form, size, at = parse(WHOLE_HEAD, raw)
  if form == WHOLE then
    return F.unpack_message(seq, sub(raw, at, at + size - 1), sub(raw, at + size), '')
  end
  return unpack_brief(seq, raw)
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
    local at = M.delete_at
    put('HSET', key, place, pack_finished(M))
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
    local at = end_of(values[j])
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
    local at = end_of(raw)
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
    elseif #members[i] == MEMBER_BYTES then
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
