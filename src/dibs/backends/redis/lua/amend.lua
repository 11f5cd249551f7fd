-- amend: make one's own claim lighter; whoever fits beside it now is told.
--
-- ARGV   id, weight
-- Gives  {now}
-- Effect Idempotent; a claim that is as light already, or gone, stays as it is.
-- Cost   as the walk.

local id, weight = ARGV[1], tonumber(ARGV[2])
local own = find(id)
if own and own[WEIGHT] > weight then
  weighed[id] = own[WEIGHT]
  own[WEIGHT] = weight
  changed[id] = true
  settle(nil, true)
  commit()
end
return { now }
