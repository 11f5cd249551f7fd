-- join of a lock that is not fair: RLock, and RFencedLock if there is a fourth key.
--
-- KEYS   the lock, the queue and the deadlines of a fair lock of the same name, [the token,] the latch
-- ARGV   lease in ms, holder, by
-- Gives  now, in 16 digits                  it holds, for its whole lease
--        {now}                              void: it came too late, or has left
--        {now, holds, left, next, token}    its standing, times in microseconds; next -1: not known
--        {now, kind}                        the name is in use as something else

-- (start.lua)
local name, queue, deadlines, latch = KEYS[1], KEYS[2], KEYS[3], KEYS[#KEYS]
local token = #KEYS == 5 and KEYS[4]
local lease, holder, by = ARGV[1], ARGV[2], ARGV[3]
-- (fair.lua)

if stamp > by then
  return { now }
end
if call('EXISTS', name, queue, latch) > 0 then
  if call('EXISTS', latch) == 1 then
    return { now }
  end
  local other = other_than_hash(name, false)
  if other then
    return { now, other }
  end
  if call('HEXISTS', name, holder) == 1 then
    return { now, 1, micro(call('PTTL', name)), -1, token and (call('GET', token) or 0) + 0 or 0 }
  end
  -- Redisson's plain lock would overtake the waiters of a fair one, and wake none of them.
  if call('EXISTS', queue) == 1 and purge() then
    return { now, 'fair mutex' }
  end
  if call('EXISTS', name) == 1 then
    return { now, 0, 0, micro(call('PTTL', name)), 0 }
  end
end
call('HINCRBY', name, holder, 1)
call('PEXPIRE', name, lease)
if token then
  return { now, 1, lease * 1000, -1, call('INCR', token) }
end
return stamp
