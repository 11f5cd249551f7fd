-- stamp: a claim that holds gets the token that a quorum agreed on, in place of its ticket.
--
-- KEYS   the queue, the floor
-- ARGV   id, token; the token is not below the claim's ticket
-- Gives  {now, 1: it has that token; 0: it holds no more, its ticket is higher, or a claim stands behind it}
-- Effect Every ticket that is given on this name from now on is higher than the token. Idempotent. Nobody else's
--        ticket is changed, so the order of the queue stays what it was.
-- Cost   as the walk, and one write.

-- (floor.lua)

local id, token = ARGV[1], ARGV[2] + 0
local seen = settle()
local own = seen.holds[id] and look_up(id)
local stamped = own and own.behind == '' and own.ticket + 0 <= token
if stamped then
  own.ticket = digits(token)
  changed[id] = true
  if token > top then
    top = token
    cover(token)
  end
end
commit()
return { now, stamped and 1 or 0 }
