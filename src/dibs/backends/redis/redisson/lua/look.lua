-- Look at a name, and change nothing.
--
-- KEYS   the name, the queue and the deadlines of a fair lock, the token, the deadlines of permits
-- ARGV   start of the keys of readers
-- Gives  {now, type, ...}: of a hash the ms that are left, the token, fields and values, {reader, ms}, {waiter, ms}; of a
--        string the value, {permit, ms}

-- (start.lua)
local name, queue, deadlines, token, permits = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local start = ARGV[1]
-- (rw.lua)

local function waiting()
  local found = {}
  for index, waiter in ipairs(call('LRANGE', queue, 0, -1)) do
    found[index] = { waiter, (call('ZSCORE', deadlines, waiter) or now_ms) - now_ms }
  end
  return found
end

local kind = call('TYPE', name).ok
if kind == 'hash' then
  local readers = {}
  for _, field in ipairs(call('HGET', name, 'mode') and call('HKEYS', name) or {}) do
    if field ~= 'mode' and not string.find(field, ':write$') then
      table.insert(readers, { field, call('PTTL', read_key(field, 1)) })
    end
  end
  return { now, kind, call('PTTL', name), (call('GET', token) or 0) + 0, call('HGETALL', name), readers, waiting() }
elseif kind == 'string' then
  local taken, found = call('ZRANGE', permits, 0, -1, 'WITHSCORES'), {}
  for index = 1, #taken, 2 do
    table.insert(found, { taken[index], taken[index + 1] - now_ms })
  end
  return { now, kind, call('GET', name), found }
end
return { now, kind, waiting() }
