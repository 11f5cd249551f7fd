-- join of a semaphore whose permits have a lease (RPermitExpirableSemaphore).
--
-- KEYS   the semaphore, the deadlines, the latch
-- ARGV   channel, the command that publishes, lease in ms, the size, the number of permits, "n", or "r" to report only,
--        id, by
-- Gives  as mutex_join.lua; {now, "semaphore", size}: it has another size

-- (start.lua)
local name, deadlines, latch = KEYS[1], KEYS[2], KEYS[3]
local channel, publish, lease, size, n, place, id, by =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4] + 0, ARGV[5] + 0, ARGV[6], ARGV[7], ARGV[8]
-- (semaphore.lua)
-- (permits.lua)

local until_ms = call('ZSCORE', deadlines, id)
if until_ms and until_ms + 0 > now_ms then
  return { now, 1, micro(until_ms - now_ms), -1, 0 }
end
if place == 'r' or stamp > by or call('EXISTS', latch) == 1 then
  return { now }
end
local free, other = free_permits(name, size, publish, channel)
if not free then
  return { now, other }
end
reclaim(n)
free = call('GET', name) + 0
local total = free + call('ZCARD', deadlines)
if total ~= size then
  return { now, 'semaphore', total }
end
if free < n then
  local first = call('ZRANGE', deadlines, 0, 0, 'WITHSCORES')[2] or now_ms
  return { now, 0, 0, math.max(first - now_ms, 1) * 1000, 0 }
end
call('DECRBY', name, n)
for _, permit in ipairs(ids_of(id, n)) do
  call('ZADD', deadlines, string.format('%.0f', now_ms + lease), permit)
end
local ends = call('PTTL', name)
if ends > 0 then
  call('PEXPIRE', deadlines, ends)
end
return stamp
