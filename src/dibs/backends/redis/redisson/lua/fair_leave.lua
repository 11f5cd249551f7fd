-- leave of a fair lock: by its holder, or by a waiter that gives up.
--
-- KEYS   the lock, its queue, its deadlines, the latch
-- ARGV   start of the waiters' channels, the command that publishes, the latch's time in ms, "u" if a join was not
--        answered, the time in ms that a waiter may wait, holder
-- Gives  1 if the claim was there, or has left before; else 0
-- Effect as mutex_leave.lua. The next waiter is told.

-- (start.lua)
local name, queue, deadlines, latch = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channels, publish, remembered, doubt, wait, holder = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
-- (fair.lua)

if call('GET', latch) then
  return 1
end
local first = call('LINDEX', queue, 0)
local head = purge()
if call('HEXISTS', name, holder) == 1 then
  call('DEL', name)
  call('SET', latch, 1, 'PX', remembered)
  if head then
    redis.pcall(publish, channels .. head, 0)
  end
  return 1
end
if doubt == 'u' then
  call('SET', latch, 0, 'PX', remembered)
end
local waited = call('ZSCORE', deadlines, holder)
if waited then
  local is_behind = false
  for _, waiter in ipairs(call('LRANGE', queue, 0, -1)) do
    if is_behind then
      call('ZINCRBY', deadlines, -wait, waiter)
    end
    is_behind = is_behind or waiter == holder
  end
  call('ZREM', deadlines, holder)
  call('LREM', queue, 0, holder)
  head = purge()
end
-- The first one may have been told that the lock is free: then the next one must hear of it.
if head and head ~= first and call('EXISTS', name) == 0 then
  redis.pcall(publish, channels .. head, 0)
end
return waited and 1 or 0
