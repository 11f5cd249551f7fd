-- foremost: the first holder, for those who follow a leader.
--
-- Gives  {now, ticket, left}; ticket 0: nobody holds
-- Effect none.
-- Cost   one read, and one for each in front that has expired.

local ticket, id = ZERO, first
while id ~= '' do
  local entry = linked(id)
  if not (entry.ticket > ticket) then
    damaged('order')
  end
  if entry.till > now then
    return { now, entry.ticket + 0, entry.till - now }
  end
  ticket, id = entry.ticket, entry.behind
end
return { now, 0, 0 }
