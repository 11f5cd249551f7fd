-- join of a fair lock (RFairLock). It holds if the lock is free, and nobody waits before it.
--
-- KEYS   the lock, its queue, its deadlines, the latch
-- ARGV   lease in ms, the time in ms that a waiter may wait, place, holder, by. The place: "l" waits in the queue, "n"
--        does not wait, "r" asks for a claim that is in the queue
-- Gives  as mutex_join.lua; of a waiter, `next` says when it must ask again
-- Effect A repeated join reports. A waiter that leaves the queue brings forward the deadlines of those behind it.

-- (start.lua)
local name, queue, deadlines, latch = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease, wait, place, holder, by = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
-- (fair.lua)

if stamp > by or call('EXISTS', latch) == 1 then
  return { now }
end
local other = other_than_hash(name, false)
if other then
  return { now, other }
end
local head = purge()
local left = call('PTTL', name) -- -2: it is free
if place == 'r' and not call('ZSCORE', deadlines, holder) and call('HEXISTS', name, holder) == 0 then
  return { now } -- it has left, or others took it for dead
end
if left == -2 and (not head or head == holder) then
  if head then
    call('LPOP', queue)
    call('ZREM', deadlines, holder)
  end
  for _, waiter in ipairs(call('ZRANGE', deadlines, 0, -1)) do
    call('ZINCRBY', deadlines, -wait, waiter)
  end
  call('HSET', name, holder, 1)
  call('PEXPIRE', name, lease)
  return stamp
end
if call('HEXISTS', name, holder) == 1 then
  return { now, 1, micro(left), -1, 0 }
end
if place == 'l' and not call('ZSCORE', deadlines, holder) then
  local last = call('LINDEX', queue, -1)
  local before = last and call('ZSCORE', deadlines, last)
  local base = before and before - now_ms or math.max(left, 0)
  call('ZADD', deadlines, string.format('%.0f', base + wait + now_ms), holder)
  call('RPUSH', queue, holder)
  head = head or holder
end
local next = micro(left)
if left == -2 then -- the first waiter may be dead: nobody else gets the lock before its deadline
  next = math.max((call('ZSCORE', deadlines, head) or now_ms + 1000) - now_ms, 1) * 1000
end
return { now, 0, 0, next, 0 }
