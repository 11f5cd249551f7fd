-- A read-write lock (RReadWriteLock): a hash with the field `mode`, a count for each reader (field: its id) and for the
-- writer (its id and ":write"). Each hold of a reader has a key of its own, which ends with its lease. A reader without
-- such keys is dropped when another one leaves. Needs `name` and `start`, the start of the names of these keys.
local function read_key(reader, n)
  return start .. reader .. ':rwlock_timeout:' .. n
end

local function counts(holder)
  local found = call('HMGET', name, holder, holder .. ':write')
  return (found[1] or 0) + 0, (found[2] or 0) + 0
end

-- Milliseconds until the last hold of the readers ends.
local function readers_left()
  local longest = 0
  for _, field in ipairs(call('HKEYS', name)) do
    local count = field ~= 'mode' and tonumber(call('HGET', name, field))
    for n = 1, count or 0 do
      longest = math.max(longest, call('PTTL', read_key(field, n)))
    end
  end
  return longest
end

-- The hash, once a holder has left: `message` wakes one waiter of each client (0) or all (1).
local function settle(publish, channel, message)
  if call('HLEN', name) > 1 then
    if call('HGET', name, 'mode') == 'write' and message == 1 then
      call('HSET', name, 'mode', 'read')
      return 1
    end
    local left = readers_left()
    if left > 0 then
      call('PEXPIRE', name, left)
      return 0
    elseif call('HGET', name, 'mode') == 'write' then
      return 0
    end
  end
  call('DEL', name)
  redis.pcall(publish, channel, message)
  return 1
end
