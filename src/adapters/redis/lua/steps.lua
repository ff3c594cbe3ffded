-- Steps of several writes on what servers share beside the shards. A step is carried out whole or not at all, also if an error
-- ends it between two writes.
--
-- A step first reads and collects its writes. If they are more than one, they are stored as a record before the first of them
-- and the record is removed after the last. A step that finds the record of an earlier one carries its writes out again, so
-- each write has to leave the same if it is repeated. Writes to ends of lists do not, and are compared with what stands there.
--
-- redo.<function>: the record, a msgpack list of commands. There is one for each function, because their steps have no keys in
-- common.

local W -- the writes of the present step
local RECORD
local END_OF_LIST = {LPUSH = 0, RPUSH = -1}

local function carry_out(writes)
  for i = 1, #writes do
    local write = writes[i]
    local place = END_OF_LIST[write[1]]
    if not place or call('LINDEX', write[2], place) ~= write[#write] then
      call(spread(write))
    end
  end
end

-- Begins a step of a function. Answers the common beginning of the keys that servers share.
function F.begin_step(name, keys)
  if not call then
    F.init()
  end
  local tag = sub(keys[1], 1, -2)
  W, RECORD = {}, tag .. 'redo.' .. name
  local left = call('GET', RECORD)
  if left then
    carry_out(cmsgpack.unpack(left))
    call('UNLINK', RECORD)
  end
  return tag
end

-- Notes a write. What the step reads is as it was before.
function F.note_write(...)
  W[#W + 1] = {...}
end

-- Carries the writes out.
function F.end_step()
  local writes = W
  if #writes > 1 then
    call('SET', RECORD, cmsgpack.pack(writes))
  end
  carry_out(writes)
  if #writes > 1 then
    call('UNLINK', RECORD)
  end
end
