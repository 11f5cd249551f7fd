-- What every verb begins with: one name's line, as it stands in one hash.
--
-- KEYS[1]  the hash. A record is a field that bears the claim's id (16 bytes) and holds what the constants below name.
--          Records are chained in the order of their tickets. About the line itself:
--            first, last     ids of the ends of the chain; absent while nobody is in line
--            top             the last ticket that was given: it stays for a while when the line is empty
--            covered         see floor.lua; absent in a cluster
--            keeps           when the key expires: some time after everything in it is over
--            outside         until when somebody who waits outside may listen
--            tombs           while there may be any: the number of the oldest tomb, and that of the next
--          A tomb is an id that must not come to stand: '~' and the id, until when; '#' and a number, the id.
-- Times are microseconds of this server's clock. Tickets are below 2^53, where a double is exact; as text they are
-- written by "%.0f" only.

local key = KEYS[1]
local ID, TICKET, BEFORE, BEHIND, CLIENT, KIND, CAPACITY, WEIGHT, LEASE, WAITING, UNTIL, ASKED, HELD, REVOKED, ABOUT =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
local DAY = 86400 * 1000000
local BRIEFLY, LONGER = 10 * 1000000, 300 * 1000000 -- how long an idle name keeps its last ticket; without a floor
local LATE = 600 * 1000000 -- a key that would stay so much too long, by a long lease, is told to go earlier
local MUCH = 2 ^ 53 -- from here on a double does not tell a number from the next

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
