-- News for other servers, in the channel n of the shard: who made the call, what it is about, then
-- s: the status of the shard. It is told when messages are ready and none was before, when a block comes or goes, and when the
--    next timer is nearer than the others know. While somebody waits although messages are ready, which do not meet its
--    filter, every arrival is told.
-- c: the epochs and sequences of running messages that should be canceled.
--
-- w: the timer that was told last, for as long as it is news; j: somebody waits although messages are ready. Both expire by
-- themselves. O(1).

local TOLD_MIN, TOLD_MAX = 250, 30000 -- milliseconds
local publish -- the command: on a cluster news stay in the slot

-- Whether the next timer is nearer than the others know.
local function is_nearer(at)
  local key, told = S.tag .. 'w', call('GET', S.tag .. 'w')
  if told and (at <= S.now or at >= tonumber(told)) then
    return false
  end
  local millis = math.min(TOLD_MAX, math.max(TOLD_MIN, math.ceil((at - S.now) / 1000)))
  call('SET', key, fmt('%.0f', at), 'PX', fmt('%.0f', millis))
  return true
end

local function is_wanted()
  return S.H.arrived > S.before.arrived and call('EXISTS', S.tag .. 'j') == 1
end

-- Decides what others are told of a call whose status this is. at: the next timer, if there is one.
function F.gather_news(status, at)
  local H, before = S.H, S.before
  local nearer = at and is_nearer(at)
  local is_ready = H.m1 > 0 and (before.ready == 0 or is_wanted())
  if is_ready or nearer or H.flags ~= before.flags then
    S.news[1] = S.caller .. 's' .. status
  end
  if #S.cancels > 0 then
    S.news[#S.news + 1] = S.caller .. 'c' .. concat(S.cancels)
  end
end

-- Tells it, once everything is written. News may be lost, so a failure to publish is no failure of the call.
function F.publish_news()
  for i = 1, #S.news do
    if not publish then
      local id = redis.pcall('CLUSTER', 'MYID')
      publish = type(id) == 'table' and id.err and 'PUBLISH' or 'SPUBLISH'
    end
    redis.pcall(publish, S.tag .. 'n', S.news[i])
  end
end
