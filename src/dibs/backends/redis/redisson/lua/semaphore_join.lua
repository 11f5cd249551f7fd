-- join of a semaphore whose permits have no lease (RSemaphore).
--
-- KEYS   the semaphore, the deadlines of permits with a lease, the mark of this claim
-- ARGV   channel, the command that publishes, the mark's time in ms, the size, the number of permits, "n", or "r" to
--        report only, id, by
-- Gives  as mutex_join.lua; {now, "semaphore", size}: it has another size
-- Effect The mark makes it idempotent: 1 while it has the permits, 0 once it has left.

-- (start.lua)
local name, deadlines, mark = KEYS[1], KEYS[2], KEYS[3]
local channel, publish, remembered, size, n, place, by = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[8]
-- (semaphore.lua)

local marked = call('GET', mark)
if marked == '1' then
  return { now, 1, -1, -1, 0 }
end
if marked or stamp > by or place == 'r' then
  return { now }
end
if call('EXISTS', deadlines) == 1 then
  return { now, 'expiring semaphore' }
end
local free, other = free_permits(name, size, publish, channel)
if not free then
  return { now, other }
elseif free > size + 0 then
  return { now, 'semaphore', free }
elseif free < n + 0 then
  return { now, 0, 0, -1, 0 }
end
call('DECRBY', name, n)
call('SET', mark, 1, 'PX', remembered)
return stamp
