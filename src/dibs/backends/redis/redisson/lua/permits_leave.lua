-- leave of a semaphore whose permits have a lease.
--
-- KEYS   the semaphore, the deadlines, the latch
-- ARGV   channel, the command that publishes, the latch's time in ms, "u" if a join was not answered, the number of
--        permits, id
-- Gives  1 if all permits were there and had not ended, or have left before; else 0

-- (start.lua)
local name, deadlines, latch = KEYS[1], KEYS[2], KEYS[3]
local channel, publish, remembered, doubt, n, id = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] + 0, ARGV[6]
-- (permits.lua)

if call('GET', latch) then
  return 1
end
local until_ms = call('ZSCORE', deadlines, id)
local removed = remove(ids_of(id, n))
if removed > 0 then
  local free = call('INCRBY', name, removed)
  redis.pcall(publish, channel, n == 1 and free or removed)
end
local is_back = removed == n and until_ms + 0 > now_ms
if doubt == 'u' or is_back then
  call('SET', latch, is_back and 1 or 0, 'PX', remembered)
end
return is_back and 1 or 0
