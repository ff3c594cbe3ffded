-- see: reads of a shard, without writes. Messages come as they are stored, but that the end of a lease is that of its session
-- if that is earlier.
--
-- keys: header, a key that never exists. args: 1 versions and time, 2 settings, 3 what, then what it needs. Reply: the
-- status, then:
-- get: a message by its reference, if there is one. O(log n)
-- peek: messages by rank, from a place on. O(limit + log n)
-- list: messages of a state by sequence, then where the search stopped if it is not at the end. O(limit + pages)
-- explain: the reason of a block, a message, what it waits for, the messages that hold it back. O(log n)
-- preview: the reason of a block, the first message that a dequeue with a filter would get, then some that values hold back,
-- each as explain tells it; of the first 256 pending ones. O(256 log n)
-- depth: the shapes, then the counts of a filter by state if it has a complete one. O(shapes)
-- totals: the header. O(1)
-- sessions: a cursor, then ids and records. O(count)
-- leases: the number of leases of each session. O(1) each
-- report: the header, the counts, signatures that changed after a position, the names of counted keys; then for each key
-- whether more of its values changed, and those that changed first from its own position on. O(signatures + REPORT_VALUES)
-- outbox: ids and entries after a place. O(entries)

local LIST_PAGES = 1024
local REPORT_VALUES = 512 -- the values of all keys that one call reads

local function show(M)
  local at = M.state == STATE.Running and F.next_due(M)
  if at and at ~= M.lease.expires then
    M.packed = nil
    M.lease.expires = at
  end
  return M
end

local PREVIEWED = 256

local function add_message(M)
  local out = S.reply
  out[#out + 1] = pack('<d', M.seq) .. F.pack_message(show(M))
  out[#out + 1] = M.s
  out[#out + 1] = F.body(M)
end

local function block()
  return F.has_flag(S.H.flags, DEQUEUE_BLOCKED) and F.blocked(0, 'dequeue_blocked') or ''
end

local function add_explained(M)
  add_message(M)
  local cause, others = '', {}
  if M.state < STATE.Completed then
    cause, others = F.waiting_cause(M)
  end
  S.reply[#S.reply + 1] = pack('<B', #others) .. cause
  for i = 1, #others do
    add_message(others[i])
  end
end

local SEE = {}

function SEE.get(args)
  local M = F.find_ref(args[4])
  if M then
    add_message(M)
  end
end

function SEE.peek(args)
  local from, limit = parse('<dd', args[4])
  local sequences = F.read_members(call('ZRANGE', S.tag .. 'p', from, from + limit - 1))
  for i = 1, #sequences do
    local M = F.whole_message(sequences[i])
    if M then
      add_message(M)
    end
  end
end

function SEE.list(args)
  local state, after, limit = parse('<Bdd', args[4])
  local pattern, out = F.state_pattern(state), S.reply
  local count, seq, stopped = 0, nil, nil
  while count < limit do
    seq, stopped = F.first_of(pattern, after, S.H.sequence, LIST_PAGES)
    if not seq then
      break
    end
    add_message(F.whole_message(seq))
    after, count = seq, count + 1
  end
  out[#out + 1] = stopped and pack('<d', stopped) or ''
end

function SEE.explain(args)
  local M = F.find_ref(args[4])
  S.reply[2] = block()
  if M then
    add_explained(M)
  end
end

function SEE.preview(args)
  local filter, out = F.pairs_of(args[4]), S.reply
  local members, first = call('ZRANGE', S.tag .. 'p', 0, PREVIEWED - 1), F.best_of(filter)
  local held, values = {}, {}
  for i = 1, #members do
    if first and not S.P.exclusive then
      break
    end
    local M = F.whole_message(F.sequence_of(members[i]))
    if F.matches(M, filter) then
      if F.may_serve(M) then
        first = first or M
      elseif #held < LIMIT.holders and not values[F.routing_hash(M)] then
        held[#held + 1], values[F.routing_hash(M)] = M, true
      end
    end
  end
  out[2], out[3] = block(), first and pack('<I4d', first.epoch, first.seq) or ''
  for i = 1, #held do
    add_explained(held[i])
  end
end

function SEE.depth(args)
  S.reply[2] = call('HGET', S.tag .. 'cf', 'shapes') or ''
  S.reply[3] = F.depth(F.pairs_of(args[4]))
end

function SEE.totals()
  S.reply[2] = F.pack_header(S.H)
end

function SEE.sessions(args)
  local page, out = call('HSCAN', S.tag .. 's', args[4], 'COUNT', 64), S.reply
  out[2] = page[1]
  for i = 1, #page[2] do
    out[#out + 1] = page[2][i]
  end
end

function SEE.leases(args)
  for i = 4, #args do
    S.reply[#S.reply + 1] = fmt('%d', call('ZCARD', S.tag .. 'u' .. args[i]) + call('ZCARD', S.tag .. 'f' .. args[i]))
  end
end

-- Those whose last change lies after a position.
local function signatures_after(since)
  local all, found = call('HGETALL', S.tag .. 'e'), {}
  for i = 1, #all, 2 do
    if all[i] ~= '~own' and select(3, parse('<ddd', all[i + 1])) > since then
      found[#found + 1], found[#found + 2] = all[i], all[i + 1]
    end
  end
  return found
end

-- At most `most` values of a key that changed at this position or later, the longest unchanged first.
local function values_from(number, position, most)
  local fields = call('ZRANGEBYSCORE', S.tag .. 'y' .. number, fmt('%d', position), '+inf', 'LIMIT', 0, most + 1)
  local page = {#fields > most and '1' or '0'}
  for i = 1, math.min(#fields, most) do
    page[#page + 1], page[#page + 2] = fields[i], call('HGET', S.tag .. 'v' .. number, fields[i])
  end
  return page
end

function SEE.report(args)
  local tag, out, since = S.tag, S.reply, parse('<d', args[4])
  out[2], out[3] = F.pack_header(S.H), call('GET', tag .. 'c') or ''
  if since >= S.H.position then
    out[4], out[5] = {}, {} -- no value and no signature changed after that
    return
  end
  out[4], out[5] = signatures_after(since), call('HGETALL', tag .. 'kd')
  local left = REPORT_VALUES
  for number = 1, #out[5] / 2 do
    local page = values_from(number, args[4 + number] and parse('<d', args[4 + number]) or since + 1, left)
    left = left - (#page - 1) / 2
    out[#out + 1] = page
  end
end

function F.see(keys, args)
  local failed = F.open(keys, args)
  if failed then
    return failed
  end
  local what = args[3]
  if S.H.deleted < 0 or what == 'totals' or what == 'report' then
    SEE[what](args)
  end
  S.reply[1] = F.status()
  -- Nothing was written, so all that was read is as before, but for the header of a call that has raised the epoch.
  S.K.raw, S.K.H = S.raw, not S.changed and S.H
  return S.reply
end
