-- cat: commits a change of the catalog of queues. req: saves a request that its caller may repeat.
--
-- An entry is stored behind its format, its id and its version, so that a commit can compare them.
--
-- cat. keys: a key that never exists. args: 1 name; 2 id and expected version, -1 for none; 3 the entry as it is stored, empty
-- for a deletion; 4 the change; 5 the hash of the name; 6 whether an answer to the same commit was lost. Reply: 1 committed;
-- or 0, the live entry, whether the id was used. O(1), and O(64) after a lost answer.
-- req. args: 1 the time, and until when it is kept; 2 queue and token; 3 the request. Reply: 1 saved, 0 no room. O(log n).

local ENTRY = '<Bc16d'
local STORED_FORMAT = 1

local function is_committed(history, change)
  local newest = call('LRANGE', history, 0, SHARED.changes_looked_at - 1)
  for i = 1, #newest do
    if newest[i] == change then
      return true
    end
  end
  return false
end

function F.cat(keys, args)
  local tag = F.begin_step('cat', keys)
  local name, entry, change, history = args[1], args[3], args[4], tag .. 'changes.' .. args[5]
  if args[6] == '1' and is_committed(history, change) then
    return {1}
  end
  local id, expected = parse('<c16d', args[2])
  local live = call('HGET', tag .. 'catalog', name)
  local was_used = call('SISMEMBER', tag .. 'used_ids', id)
  local format, live_id, version = STORED_FORMAT, id, -1
  if live then
    format, live_id, version = parse(ENTRY, live)
  end
  if format ~= STORED_FORMAT then
    return redis.error_reply('FORMAT the entry of the catalog has another format')
  end
  if version ~= expected or live_id ~= id or (not live and was_used == 1) then
    return {0, live or '', was_used}
  end
  -- Above every earlier one, also above those that a Redis lost when it came back with older data.
  local revision = math.max(tonumber(call('GET', tag .. 'revision') or 0) + 1, redis_time[1] * 1000000 + redis_time[2])
  F.note_write('SADD', tag .. 'used_ids', id)
  if entry == '' then
    F.note_write('HDEL', tag .. 'catalog', name)
  else
    F.note_write('HSET', tag .. 'catalog', name, entry)
  end
  F.note_write('LPUSH', history, change)
  F.note_write('SET', tag .. 'revision', fmt('%.0f', revision))
  F.end_step()
  return {1}
end

function F.req(keys, args)
  local tag = F.begin_step('req', keys)
  local requests, by_end, member = tag .. 'requests', tag .. 'requests_by_end', args[2]
  local now, until_ = parse('<dd', args[1])
  local over = call('ZRANGEBYSCORE', by_end, '-inf', fmt('%.0f', now), 'LIMIT', 0, SHARED.rows)
  local is_known = call('HEXISTS', requests, member) == 1
  for i = 1, #over do
    is_known = is_known and over[i] ~= member
    F.note_write('HDEL', requests, over[i])
    F.note_write('ZREM', by_end, over[i])
  end
  local has_room = is_known or call('HLEN', requests) - #over < SHARED.requests
  if has_room then
    F.note_write('HSET', requests, member, args[3])
    F.note_write('ZADD', by_end, fmt('%.0f', until_), member)
  end
  F.end_step()
  return {has_room and 1 or 0}
end
