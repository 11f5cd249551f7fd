-- Remove one holder by force.
--
-- KEYS   the name, the queue and the deadlines of a fair lock, the deadlines of permits
-- ARGV   holder, start of the keys of readers, the command that publishes, channel of the lock, of the read-write lock,
--        of the semaphore
-- Gives  {now, 1 if it was there, else 0}

-- (start.lua)
local name, queue, deadlines, permits = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local holder, start, publish = ARGV[1], ARGV[2], ARGV[3]
-- (fair.lua)
-- (rw.lua)

local kind = call('TYPE', name).ok
if kind == 'string' then
  local id = string.gsub(holder, '%x%x', function(digits) return string.char(tonumber(digits, 16)) end)
  if call('ZREM', permits, id) == 0 then
    return { now, 0 }
  end
  redis.pcall(publish, ARGV[6], call('INCRBY', name, 1))
  return { now, 1 }
elseif kind ~= 'hash' or holder == 'mode' or holder == 'h' or call('HEXISTS', name, holder) == 0 then
  return { now, 0 }
elseif call('HEXISTS', name, 'mode') == 1 then
  local count = call('HGET', name, holder) + 0
  call('HDEL', name, holder)
  for n = 1, count do
    call('DEL', read_key(holder, n))
  end
  settle(publish, ARGV[5], string.find(holder, ':write$') and 1 or 0)
  return { now, 1 }
end
call('DEL', name)
local head = purge()
redis.pcall(publish, head and ARGV[4] .. ':' .. head or ARGV[4], 0)
return { now, 1 }
