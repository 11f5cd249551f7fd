-- amend: lower the weight of a claim, and signal the claims that now fit beside it.
--
-- ARGV   id, weight
-- Gives  {now}
-- Effect Idempotent. A claim that already has this weight, or is gone, is not changed.
-- Cost   as the walk.

local id, weight = ARGV[1], ARGV[2] + 0
local own = look_up(id)
if own and own.weight > weight then
  weighed[id] = own.weight
  own.weight = weight
  changed[id] = true
  mixed = mixed or weight == 0
  sweep(nil, true)
  commit()
end
return { now }
