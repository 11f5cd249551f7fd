-- leave of a semaphore whose permits have no lease.
--
-- KEYS   the semaphore, the mark of this claim
-- ARGV   channel, the command that publishes, the mark's time in ms, "h" if the claim surely has its permits, else "u",
--        the number of permits
-- Gives  1 if they are back; 0 if it had none, or the semaphore is gone

local call, name, mark = redis.call, KEYS[1], KEYS[2]
local channel, publish, remembered, state, n = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local marked = call('GET', mark)
if marked == '0' then
  return 1
end
call('SET', mark, 0, 'PX', remembered)
if not marked and state == 'u' or call('EXISTS', name) == 0 then
  return 0
end
redis.pcall(publish, channel, call('INCRBY', name, n))
return 1
