-- News for other servers, in the channel n of the shard: who made the call, what it is about, then
-- s: the status of the shard. It is told when messages are ready and none was before, when a block comes or goes, and when the
--    next timer is nearer than the others know. While somebody waits although messages are ready, which do not meet its
--    filter, every arrival is told.
-- c: the epochs and sequences of running messages that should be canceled.
--
-- w: the timer that was told last, for as long as it is news; j: somebody waits although messages are ready. Both expire by
-- themselves. O(1).

local TOLD_MIN, TOLD_MAX = 250, 30000 -- milliseconds
local TOLD_MARGIN = 50 -- milliseconds before the end of what was told, from which on it is read
local CALLER_BYTES = 8
local publish -- the command: on a cluster news stay in the slot

-- Whether the next timer is nearer than the others know. What was told is read only when it may have expired.
local function is_nearer(at)
  local K, now = S.K, S.now
  local told = K.told and S.store < K.told_until and K.told or call('GET', S.keys.w)
  if told and (at <= now or at >= tonumber(told)) then
    return false
  end
  local millis = math.min(TOLD_MAX, math.max(TOLD_MIN, math.ceil((at - now) / 1000)))
  call('SET', S.keys.w, at, 'PX', millis)
  K.told, K.told_until = at, S.store + (millis - TOLD_MARGIN) * 1000
  return true
end

local function is_wanted()
  return S.H.arrived > S.arrived_before and call('EXISTS', S.keys.j) == 1
end

-- Decides what others are told of a call whose status this is. at: the next timer, if there is one.
function F.gather_news(status, at)
  local H, news = S.H, nil
  local nearer = at and is_nearer(at)
  local is_ready = H.m1 > 0 and (S.ready_before == 0 or is_wanted())
  if is_ready or nearer or H.flags ~= S.flags_before then
    news = {sub(S.args[1], -CALLER_BYTES) .. 's' .. status}
  end
  if S.cancels then
    news = news or {}
    news[#news + 1] = sub(S.args[1], -CALLER_BYTES) .. 'c' .. concat(S.cancels)
  end
  return news
end

-- Tells it, once everything is written. News may be lost, so a failure to publish is no failure of the call.
function F.publish_news(news)
  for i = 1, #news do
    if not publish then
      local id = redis.pcall('CLUSTER', 'MYID')
      publish = type(id) == 'table' and id.err and 'PUBLISH' or 'SPUBLISH'
    end
    redis.pcall(publish, S.keys.n, news[i])
  end
end
