-- A semaphore (RSemaphore): the number of free permits. Nobody knows who has the others.
-- Sets the size if there is none yet. Gives the number, or nil and what else the key is.
local function free_permits(name, size, publish, channel)
  local kind = call('TYPE', name).ok
  if kind == 'none' then
    call('SET', name, size)
    redis.pcall(publish, channel, size)
    return size + 0
  end
  return kind == 'string' and tonumber(call('GET', name)) or nil, kind
end
