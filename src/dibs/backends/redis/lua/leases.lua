-- leases: store the lease of a claim, and return the longest lease in use. Used with Sentinel: after a fail-over,
-- nothing new is granted for that long.
--
-- KEYS[1]  a hash. For each class of leases (a power of two): "<lease> <until>", the longest recent one, and until when
--          it counts
-- ARGV     lease, its class (0 to CLASSES)
-- Gives    {now, the longest lease}
-- Effect   A lease counts for two minutes plus its own length: a fail-over takes less than two minutes, and a grant
--          before it lasts one lease. Clients store a lease that they use every half minute.
-- Cost     constant.

local key, lease, class = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local CLASSES, MINUTES = 31, 120 * 1000000
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local fields = {}
for number = 0, CLASSES do
  fields[number + 1] = number
end
local longest, own = lease, lease
for index, text in ipairs(redis.call('HMGET', key, unpack(fields))) do
  local noted, till = string.match(text or '', '^(%d+) (%d+)$')
  if noted and tonumber(till) > now then
    longest = math.max(longest, tonumber(noted))
    own = index == class + 1 and math.max(own, tonumber(noted)) or own
  end
end
local function number(value)
  return string.format('%.0f', value)
end
redis.call('HSET', key, class, number(own) .. ' ' .. number(now + lease + MINUTES))
redis.call('PEXPIREAT', key, number(math.floor((now + longest + MINUTES) / 1000)))
return { now, longest }
