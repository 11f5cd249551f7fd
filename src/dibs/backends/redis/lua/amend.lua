-- amend: make one's own claim lighter; the claims that fit beside it now are told.
--
-- ARGV   id, weight
-- Gives  {now}
-- Effect Idempotent; a claim that is as light already, or gone, stays as it is.
-- Cost   as the walk.

local id, weight = ARGV[1], ARGV[2] + 0
local own = look_up(id)
if own and own.weight > weight then
  weighed[id] = own.weight
  own.weight = weight
  changed[id] = true
  mixed = mixed or weight == 0
  settle(nil, true)
  commit()
end
return { now }
