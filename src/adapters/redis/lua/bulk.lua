-- bulk: purges, redrives, discards or cancels messages by sequence, at most 64 a call. swp: applies what is due, and shorter retentions.
--
-- bulk. keys: header, a key that never exists. args: 1 versions and time, 2 settings, 3 request, 4 filter, 5 signature,
-- 6 the reason of a cancel. Reply:
-- the status, then: how many changed, and the last sequence before the next step if there may be one. O(max log n), and the
-- pages of states that it reads, at most BULK_PAGES.
-- swp. args: 1, 2, 3 request. Reply: the status, then: how many rows, whether there is more. O(max log n).

local BULK_REQUEST = '<BBBBHddd'
local BULK_PURGE, BULK_REDRIVE, BULK_CANCEL = 0, 1, 3
local HAS_SIGNATURE, HAS_ENDED_BY, DRY_RUN = 1, 2, 4
local BULK_PAGES = 1024

local function is_meant(M, B)
  if B.signature and M.error_signature ~= B.signature then
    return false
  elseif B.ended_by and M.ended_at and M.ended_at > B.ended_by then
    return false
  end
  return F.matches(M, B.filter)
end

local function by_purge(M)
  M.canceled_by, M.canceled_why = CANCELED.Purge, nil
end

-- Changes a message. Returns whether it reached the state that the operation promises, or nil and a refusal.
local function change_one(M, kind, reason)
  if kind == BULK_PURGE and not F.is_over(M.state) then
    local to, refused = F.apply(M, TRIGGER.Purge, false, by_purge)
    return to and to == STATE.Canceled, refused
  elseif kind == BULK_REDRIVE then
    local to, refused = F.redrive(M)
    return to and to == STATE.Pending, refused
  elseif kind == BULK_CANCEL then
    local refused = F.cancel(M, reason)
    return not refused, refused
  end
  return F.remove(M, kind == BULK_PURGE and TRIGGER.Purge or TRIGGER.Discard)
end

-- A pattern of the states that a purge covers: a bit for each, the first state lowest.
local function purged_states(bits)
  local states = {}
  for state = STATE.Invisible, STATE.Errored do
    if F.has_flag(bits, 2 ^ state) then
      states[#states + 1] = state
    end
  end
  return F.state_pattern(spread(states))
end

local function bulk(args)
  local B = {filter = F.pairs_of(args[4])}
  local kind, flags, bad, of_states, max, after, through, ended_by = parse(BULK_REQUEST, args[3])
  B.signature = F.has_flag(flags, HAS_SIGNATURE) and args[5] or nil
  B.ended_by = F.has_flag(flags, HAS_ENDED_BY) and ended_by or nil
  if bad ~= 0 then
    return F.refuse(REFUSED.INVALID)
  end
  local states = F.state_pattern(STATE.Errored)
  if kind == BULK_PURGE then
    states = purged_states(of_states)
  elseif kind == BULK_CANCEL then
    states = F.state_pattern(STATE.Invisible, STATE.Pending, STATE.Running)
  end
  local reached, count, stopped = after, 0, nil
  for _ = 1, max do
    local seq
    seq, stopped = F.first_of(states, reached, through, BULK_PAGES)
    if not seq then
      break
    end
    reached = seq
    local M = F.message(seq)
    if is_meant(M, B) then
      local reached_it, refused = true, nil
      if not F.has_flag(flags, DRY_RUN) then
        reached_it, refused = change_one(M, kind, args[6])
      end
      if refused then
        return refused
      end
      count = count + (reached_it and 1 or 0)
    end
  end
  if not stopped then
    local next_
    next_, stopped = F.first_of(states, reached, through, BULK_PAGES)
    stopped = next_ and reached or stopped
  end
  return pack('<BdBd', 0, count, stopped and 1 or 0, stopped or 0)
end

function F.bulk(keys, args)
  local failed = F.open(keys, args)
  if failed then
    return failed
  end
  F.answer(S.H.deleted >= 0 and F.refuse(REFUSED.DELETED) or bulk(args))
  return F.finish()
end

-- Removes messages past their retention. Returns how many.
local function remove_old(most)
  local count = 0
  local sequences = F.old_messages(most)
  for i = 1, #sequences do
    local M = F.message(sequences[i])
    if M and M.state >= STATE.Completed and M.delete_at <= S.now then
      F.remove(M, TRIGGER.RetentionOver)
      count = count + 1
    end
  end
  return count
end

-- Applies a shorter retention to up to `most` more messages that are over. Returns how many it went through.
local function shorten_retentions(most)
  local H, cf = S.H, S.tag .. 'cf'
  if not F.has_flag(H.flags, SHORTENING) then
    return 0
  end
  local over = F.state_pattern(STATE.Completed, STATE.Canceled, STATE.Errored)
  local through, count, seq, stopped = tonumber(call('HGET', cf, 'shortened')) or 0, 0, nil, nil
  while true do
    seq, stopped = F.first_of(over, through, H.sequence, BULK_PAGES)
    if not seq or count == most then
      break
    end
    local M = F.message(seq)
    local at = M.ended_at and M.ended_at + S.P.kept[M.state]
    if at and at < M.delete_at then
      F.touch(M)
      M.delete_at = at
    end
    through, count = seq, count + 1
  end
  S.changed, S.pages = true, false -- what follows changes states of the pages that were read
  if seq or stopped then
    F.write('HSET', cf, 'shortened', fmt('%d', stopped or through))
  else
    H.flags = F.set_flag(H.flags, SHORTENING, false)
    F.write('HDEL', cf, 'shortened')
  end
  return count
end

local function forget_old_sessions(most)
  if most <= 0 or S.H.sessions == 0 then
    return 0
  end
  local ids = call('ZRANGEBYSCORE', S.keys.sg, '-inf', S.now, 'LIMIT', '0', most)
  for i = 1, #ids do
    F.forget_session(ids[i])
  end
  return #ids
end

local function sweep(raw)
  local bad, max = parse('<BH', raw)
  if bad ~= 0 then
    return F.refuse(REFUSED.INVALID)
  end
  if S.H.rest_until > 0 and not F.is_resting() then
    S.H.rest_until, S.changed = 0, true -- the status has a head again
  end
  if F.is_quiet() then
    return pack('<BdB', 0, 0, COMPLETE)
  end
  local count = F.catch_up_shard(max)
  F.flush()
  count = count + shorten_retentions(max - count)
  F.flush()
  if count < max then
    count = count + remove_old(max - count)
    F.flush()
  end
  count = count + forget_old_sessions(max - count)
  F.flush()
  count = count + F.fill_shapes(max - count)
  F.recheck()
  if F.has_flag(S.H.flags, DROPPING) then
    F.drop_groups(S.H)
  end
  F.flush()
  local at = F.next_event()
  return pack('<BdB', 0, count, at and at <= S.now and MORE or COMPLETE)
end

function F.swp(keys, args)
  local failed = F.open(keys, args)
  if failed then
    return failed
  end
  F.answer(S.H.deleted >= 0 and F.refuse(REFUSED.DELETED) or sweep(args[3]))
  return F.finish()
end
