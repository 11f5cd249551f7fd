-- put: replace a value, if it still has the version that the writer read.
--
-- KEYS[1]  a hash: value, version; for each recent version a field "write-<version>": the id of its write, and until
--          when it is remembered; and `oldest`, the lowest version with such a field
-- ARGV     id, longest, version, value, by; `longest`: how far `by` can be in the future
-- Gives    {now, 1, version}    done, now or before, by a write with this id
--          {now, 0, version}    the value has another version
--          {now}                too late
-- Effect   A message goes to the channel with the key's name. Nothing here ever expires.
-- Cost     constant: each put removes up to two old "write-" fields.

local key, id, longest, version = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local value, by = ARGV[4], tonumber(ARGV[5])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function number(value)
  return string.format('%.0f', value)
end

local made = number(version + 1)
local stands = redis.call('HMGET', key, 'version', 'oldest', 'write-' .. made)
local there, oldest, write = tonumber(stands[1] or 0), tonumber(stands[2] or made), stands[3]

if not there or not oldest then
  error('dibs-damaged version')
end
if now > by then
  return { now }
end
if write and string.sub(write, 1, #id) == id then
  redis.call('HSET', key, 'version', number(there)) -- unchanged: WAIT counts from the last write of this connection
  return { now, 1, version + 1 }
end
if there ~= version then
  return { now, 0, there }
end
local gone = {}
for number_of_old = oldest, math.min(oldest + 1, version) do
  local field = 'write-' .. number(number_of_old)
  local old = redis.call('HGET', key, field)
  local till = old and tonumber(string.sub(old, #id + 1))
  if till and till >= now and till <= now + longest then
    break
  end
  table.insert(gone, field)
end
local till = math.min(by, now + longest)
redis.call('HSET', key, 'value', value, 'version', made, 'oldest', number(oldest + #gone),
  'write-' .. made, id .. number(till))
if gone[1] then
  redis.call('HDEL', key, unpack(gone))
end
redis.pcall('PUBLISH', key, 'l') -- without the right to publish, the write still counts
return { now, 1, version + 1 }
