-- leave of a lock that is not fair.
--
-- KEYS   the lock, the latch
-- ARGV   channel, the command that publishes, the latch's time in ms, "u" if a join was not answered, holder
-- Gives  1 if the claim was there, or has left before; else 0
-- Effect Idempotent: the latch remembers the leave, and makes a join void that arrives later.

local call, name, latch = redis.call, KEYS[1], KEYS[2]
local channel, publish, remembered, doubt, holder = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if call('HDEL', name, holder) == 0 then -- the key of a lock has no other field
  if call('EXISTS', latch) == 1 then
    return 1
  end
  if doubt == 'u' then
    call('SET', latch, 0, 'PX', remembered)
  end
  return 0
end
redis.pcall(publish, channel, 0)
call('SET', latch, 1, 'PX', remembered)
return 1
