-- stamp: a claim that holds gets the token that a quorum agreed on, in place of its ticket.
--
-- KEYS   the line, the floor
-- ARGV   id, token; the token is not below the claim's ticket
-- Gives  {now, 1: it has that token; 0: it holds no more, its ticket is higher, or somebody stands behind it}
-- Effect Every ticket that is given on this name from now on is higher than the token. Idempotent. Nobody else's
--        ticket is changed, so the order of the line stays what it was.
-- Cost   as the walk, and one write.

-- (floor.lua)

local id, token = ARGV[1], tonumber(ARGV[2])
local seen = settle()
local own = seen.holds[id] and find(id)
local stamped = own and own[BEHIND] == '' and own[TICKET] <= token
if stamped then
  own[TICKET] = token
  changed[id] = true
  if token > top then
    write('top', number(token))
    cover(token)
    if covered ~= known then
      write('covered', number(covered))
    end
  end
end
commit()
return { now, stamped and 1 or 0 }
