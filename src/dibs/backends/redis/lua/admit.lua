-- admit: compare a token with the highest one that a fence has admitted, and raise that.
--
-- KEYS[1]  a hash: value (the token in digits), version
-- ARGV     token in digits, "shared" or "exclusive"
-- Gives    {now, the highest exclusive token admitted before}
-- Effect   A higher exclusive token replaces it. The record never expires. Tokens of other stores have up to 20 digits,
--          too many for a double, so they are compared as text.
-- Cost     constant.

local key, token = KEYS[1], ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local stands = redis.call('HMGET', key, 'value', 'version')
local highest, version = stands[1] or '0', tonumber(stands[2] or 0)

if #highest > 20 or not string.match(highest, '^%d+$') then
  error('dibs-damaged fence')
end
local is_higher = #token > #highest or (#token == #highest and token > highest)
if is_higher and ARGV[2] == 'exclusive' then
  redis.call('HSET', key, 'value', token, 'version', string.format('%.0f', version + 1))
elseif stands[1] then
  redis.call('HSET', key, 'value', highest) -- unchanged: WAIT counts from the last write of this connection
end
return { now, highest }
