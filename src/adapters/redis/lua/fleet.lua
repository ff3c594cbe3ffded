-- mem: the members of the fleet. opr: the rows of operations.
--
-- A heartbeat is stored behind its number in 16 hex digits, a row behind its version.
--
-- mem. keys: a key that never exists. args: 1 the member; 2 the number of its heartbeat and 3 the heartbeat; without them it is
-- removed for good. Reply: 1. O(1).
-- opr. args: 1 the id, 2 the version and the end (negative without one), 3 the row, 4 the place among the operations of its
-- queue before the id (zeros for none): stores it. Or 1 empty, 2 a time: forgets
-- rows that ended before it. Reply: 1 stored, 0 it is not the next version, 2 no room; or how many were forgotten. O(log n)
-- each.
-- look, for running operations. args: 1 'running', 2 the id after which the page begins. Reply: ids and rows in turn, by id.
-- O(64).
-- look, for the operations of a queue, newest first. args: 1 'operations', 2 the place before which they are, 3 the number of the
-- queue, 4 how many. Reply: ids and rows in turn. O(log n + rows).

-- The bytes of a version, and of a place before the id.
local VERSION_BYTES, PLACE_BYTES = 8, 24
local NO_PLACE = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

-- What look reads, by the first of its arguments.
F.LOOK = {}

function F.mem(keys, args)
  local tag = F.begin_step('mem', keys)
  local members, removed, id = tag .. 'members', tag .. 'removed_members', args[1]
  if not args[2] then
    F.note_write('SADD', removed, id)
    F.note_write('HDEL', members, id)
    F.end_step()
    return {1}
  end
  local known = call('HGET', members, id)
  local is_newer = not known or sub(known, 1, 16) < args[2]
  if is_newer and call('SISMEMBER', removed, id) == 0 then
    call('HSET', members, id, args[2] .. args[3])
  end
  return {1}
end

local function drop_row(tag, id)
  local known = call('HGET', tag .. 'operations', id)
  if known then
    local place = sub(known, VERSION_BYTES + 1, VERSION_BYTES + PLACE_BYTES)
    F.note_write('ZREM', tag .. 'operations_listed', place .. id)
  end
  F.note_write('HDEL', tag .. 'operations', id)
  F.note_write('ZREM', tag .. 'operations_running', id)
  F.note_write('ZREM', tag .. 'operations_ended', id)
end

local function put_row(tag, id, version, ended, row, place)
  local rows = tag .. 'operations'
  local known = call('HGET', rows, id)
  if (known and parse('<d', known) or 0) + 1 ~= version then
    return 0
  end
  if not known and call('HLEN', rows) >= SHARED.operations then
    local oldest = call('ZRANGE', tag .. 'operations_ended', 0, 0)[1]
    if not oldest then
      return 2
    end
    drop_row(tag, oldest)
  end
  F.note_write('HSET', rows, id, pack('<d', version) .. place .. row)
  if not known and place ~= NO_PLACE then
    F.note_write('ZADD', tag .. 'operations_listed', 0, place .. id)
  end
  local has_ended = ended >= 0
  F.note_write('ZREM', tag .. (has_ended and 'operations_running' or 'operations_ended'), id)
  -- Running ones are in the order of their ids.
  F.note_write('ZADD', tag .. (has_ended and 'operations_ended' or 'operations_running'), fmt('%.0f', has_ended and ended or 0), id)
  return 1
end

function F.opr(keys, args)
  local tag = F.begin_step('opr', keys)
  if args[1] ~= '' then
    local version, ended = parse('<dd', args[2])
    local outcome = put_row(tag, args[1], version, ended, args[3], args[4])
    F.end_step()
    return {outcome}
  end
  local before = parse('<d', args[2])
  local over = call('ZRANGEBYSCORE', tag .. 'operations_ended', '-inf', '(' .. fmt('%.0f', before), 'LIMIT', 0, SHARED.rows)
  for i = 1, #over do
    drop_row(tag, over[i])
  end
  F.end_step()
  return {#over}
end

function F.LOOK.running(tag, args)
  local from = args[2] == '' and '-' or '(' .. args[2]
  local ids = call('ZRANGEBYLEX', tag .. 'operations_running', from, '+', 'LIMIT', 0, SHARED.rows)
  local out = {}
  for i = 1, #ids do
    out[2 * i - 1], out[2 * i] = ids[i], call('HGET', tag .. 'operations', ids[i])
  end
  return out
end

function F.LOOK.operations(tag, args)
  local count = parse('<d', args[4])
  local places = call('ZREVRANGEBYLEX', tag .. 'operations_listed', '(' .. args[2], '[' .. args[3], 'LIMIT', 0, count)
  local out = {}
  for i = 1, #places do
    local id = sub(places[i], PLACE_BYTES + 1)
    local row = call('HGET', tag .. 'operations', id)
    if row then
      out[#out + 1], out[#out + 2] = id, row
    end
  end
  return out
end
