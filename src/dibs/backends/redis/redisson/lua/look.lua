-- Look at a name, and change nothing.
--
-- KEYS   the name, the queue and the deadlines of a fair lock, the token, the deadlines of permits
-- ARGV   start of the keys of readers
-- Gives  {now, type, ...}: of a lock the ms that are left, the token, fields and values, {reader, ms}, {waiter, ms}; of a
--        string the value, {permit, ms}; of anything else {waiter, ms}

-- (start.lua)
local name, queue, deadlines, token, permits = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local start = ARGV[1]
local LONGEST = 20 -- digits of a number
-- (rw.lua)

local function waiting()
  local found = {}
  for index, waiter in ipairs(call('LRANGE', queue, 0, -1)) do
    found[index] = { waiter, (call('ZSCORE', deadlines, waiter) or now_ms) - now_ms }
  end
  return found
end

-- Whether the key can be one of Redisson's. All keys of a database are looked at for a list, and may be large.
local function is_lock(kind)
  if kind == 'string' then
    return call('STRLEN', name) <= LONGEST
  elseif kind ~= 'hash' then
    return false
  end
  local mode = call('HGET', name, 'mode')
  return mode == 'read' or mode == 'write'
    or call('HLEN', name) == 1 and call('HSTRLEN', name, call('HKEYS', name)[1]) <= LONGEST
end

local kind = call('TYPE', name).ok
if not is_lock(kind) then
  return { now, kind, waiting() }
elseif kind == 'hash' then
  local readers = {}
  for _, field in ipairs(call('HGET', name, 'mode') and call('HKEYS', name) or {}) do
    if field ~= 'mode' and not string.find(field, ':write$') then
      table.insert(readers, { field, call('PTTL', read_key(field, 1)) })
    end
  end
  return { now, kind, call('PTTL', name), (call('GET', token) or 0) + 0, call('HGETALL', name), readers, waiting() }
end
local taken, found = call('ZRANGE', permits, 0, -1, 'WITHSCORES'), {}
for index = 1, #taken, 2 do
  table.insert(found, { taken[index], taken[index + 1] - now_ms })
end
return { now, kind, call('GET', name), found }
