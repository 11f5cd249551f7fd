-- Set the number of holds of a lock's holder, after a re-entry or one of several releases.
--
-- KEYS   the lock[, the token: another one is given if there are more holds than before]
-- ARGV   lease in ms, holder, the number of holds
-- Gives  {now, token}; token 0: none. {now, -1}: the holder is gone

-- (start.lua)
local name, token = KEYS[1], KEYS[2]
local lease, holder, wanted = ARGV[1], ARGV[2], ARGV[3] + 0
local present = call('HGET', name, holder)
if not present then
  return { now, -1 }
end
call('HSET', name, holder, wanted)
call('PEXPIRE', name, lease)
if not token then
  return { now, 0 }
end
return { now, wanted > present + 0 and call('INCRBY', token, wanted - present) or (call('GET', token) or 0) + 0 }
