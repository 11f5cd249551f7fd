local key = KEYS[1]
local ID, TICKET, BEFORE, BEHIND, CLIENT, KIND, CAPACITY, WEIGHT, LEASE, WAITING, UNTIL, ASKED, HELD, REVOKED, ABOUT =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
local DAY = 86400 * 1000000
local BRIEFLY, LONGER = 10 * 1000000, 300 * 1000000
local LATE = 600 * 1000000
local MUCH = 2 ^ 53
local function damaged(what)
  error('dibs-damaged ' .. what)
end
local function number(value)
  return string.format('%.0f', value)
end
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local stands = redis.call('HMGET', key, 'first', 'last', 'top', 'keeps', 'outside', 'tombs', 'covered')
local first, last = stands[1] or '', stands[2] or ''
local kept = stands[3] and not stands[7] and LONGER or BRIEFLY
local top, keeps, outside = tonumber(stands[3] or 0), tonumber(stands[4] or 0), tonumber(stands[5] or 0)
if not (top >= 0 and top < MUCH - 1) then
  damaged('top')
end
