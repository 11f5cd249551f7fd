-- stamp: replace the ticket of a holder by the token that a quorum agreed on.
--
-- KEYS   the queue, the floor
-- ARGV   id, token; the token is not below the claim's ticket
-- Gives  {now, 1: it has that token; 0: it does not hold, its ticket is higher, or another claim is behind it}
-- Effect Every later ticket of this name is higher than the token. Idempotent. No other ticket is changed, so the order
--        of the queue stays the same.
-- Cost   as the walk, and one write.

-- (floor.lua)

local id, token = ARGV[1], ARGV[2] + 0
local seen = sweep()
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
