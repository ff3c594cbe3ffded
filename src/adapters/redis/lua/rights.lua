-- Rights. A function that may not run one of its commands would fail half way, and its shard would be damaged for good. So every
-- function refuses its call before it begins while its caller lacks a right that any function needs. It looks once a second.
--
-- may: looks for others. args: commands, with a space between their words. Reply: those that the caller may not run, and after a
-- question mark those that the server does not know, because they are renamed or turned off. O(args).

local looked -- the second of the last look that found nothing missing

-- The commands on a key that the caller may not run.
local function lacking(key)
  local found = {}
  for i = 1, #RIGHTS do
    local right = RIGHTS[i]
    -- An unknown command is an error.
    local is_known, may_run = pcall(redis.acl_check_cmd, right[1], key, unpack(right, 2))
    if not (is_known and may_run) then
      found[#found + 1] = right[1]
    end
  end
  return found
end

-- A function that begins with the look. It takes Redis' time for all that the call does.
function F.guarded(own)
  return function(keys, args)
    redis_time = redis.pcall('TIME') -- an error has no parts
    local second = redis_time[1]
    if not second or second ~= looked then
      local found = lacking(keys[1])
      if #found > 0 then
        return redis.error_reply('DENIED the user may not run ' .. table.concat(found, ', ') .. ' on keys that begin with {')
      end
      looked = second
    end
    return own(keys, args)
  end
end

function F.may(_, args)
  local found = {}
  for i = 1, #args do
    local words = {}
    for word in string.gmatch(args[i], '%S+') do
      words[#words + 1] = word
    end
    local is_known, may_run = pcall(redis.acl_check_cmd, unpack(words))
    if not is_known then
      found[#found + 1] = '?' .. args[i]
    elseif not may_run then
      found[#found + 1] = args[i]
    end
  end
  if #found > 0 then
    looked = nil
  end
  return found
end
