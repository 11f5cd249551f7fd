-- The layout of a queue, version 2, and what every verb begins with.
--
-- KEYS[1]  a hash. Field "h", the head, says all about the queue and has the record of its first claim:
--            version (1)  top (16)  covered (16)  keeps (10)             43 characters and no more: the queue is free
--            "a" record                                                  one claim, which stands alone
--            "q" last (16)  link (48)  record                            the last claim's id; the link to the second
--            "s" outside (16)  oldest (16)  next (16)  mixed (1)         something special, before "a", "q" or nothing
--          top      the last ticket that was given
--          covered  no ticket above it may be given before the floor was raised: see floor.lua
--          keeps    the second at which the key expires: some time after everything in it is over
--          outside  until when an unfair waiter may listen
--          oldest, next   numbers of the tombstones: of the oldest, and of the next one to be made
--          mixed    1: a claim of weight 0 stands among others
--          A queue of the kind "election" is special, too: its changes are told to all who listen to its name.
--          Every other claim has a field that bears its id and holds its record. Field ">" and an id: the link from
--          that claim to the next one, which is its id (16), SINCE (16) and SPAN (16).
--          A tombstone is an id that must not come to stand: "!" and the id, until when; "=" and a number, the id.
--          The fields `first`, `last`, `keeps` and one record are for version 1: it finds a queue of another kind.
-- Record   id (16)  before (16)  ticket  since  span  asked  held (16 each)  revoked (1), then what the client sends:
--          lease  waiting  weight  capacity (16 each)  kind (16)  length of the channel (4)  channel  about
--          A claim expires at since + span. `before` is the id of the claim before it; stale in the first one.
-- Times are microseconds of this server's clock. They and all numbers have 16 digits, so texts compare as numbers do.
-- Tickets are below 2^53, where a double is exact.

local key, call, sub, find = KEYS[1], redis.call, string.sub, string.find

-- The server's time, in 16 digits and as the server tells it.
local function read_clock()
  local clock = call('TIME')
  local stamp = clock[1] .. sub('000000' .. clock[2], -6)
  return #stamp == 16 and stamp or sub('0000000000' .. stamp, -16), clock[1]
end
