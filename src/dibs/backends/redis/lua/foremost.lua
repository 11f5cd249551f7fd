-- foremost: who holds first, for those who follow a leader.
--
-- Gives  {now, ticket, left}; ticket 0: nobody holds
-- Effect none.
-- Cost   one read, and one for each in front that has expired.

local ticket, id = 0, first
while id ~= '' do
  local entry = linked(id)
  if not (entry[TICKET] > ticket) then
    damaged('order')
  end
  if entry[UNTIL] > now then
    return { now, entry[TICKET], entry[UNTIL] - now }
  end
  ticket, id = entry[TICKET], entry[BEHIND]
end
return { now, 0, 0 }
