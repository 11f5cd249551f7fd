-- The count of a latch.
--
-- KEYS   the latch
-- Gives  {now, count}; 0: it is open. {now, kind}: no latch

-- (start.lua)
local kind = call('TYPE', KEYS[1]).ok
if kind == 'none' then
  return { now, 0 }
end
return { now, kind == 'string' and tonumber(call('GET', KEYS[1])) or kind }
