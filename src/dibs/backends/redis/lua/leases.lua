-- leases: note the lease of a claim, and tell the longest that is in use. Asked for where sentinels decide who is the
-- primary: after a fail-over nothing new is granted for so long.
--
-- KEYS[1]  a hash. For each class of leases (a power of two): "<lease> <until>", the longest one that was noted lately,
--          and until when that is remembered
-- ARGV     lease, its class, a number from 0 to CLASSES
-- Gives    {now, the longest lease}
-- Effect   It is remembered for two minutes and as long as the lease: a fail-over takes less than that, and what was
--          granted before it lasts one lease. Whoever uses the lease notes it every half minute.
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
