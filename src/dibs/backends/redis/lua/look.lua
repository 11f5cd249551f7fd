-- look: the line as it stands, for onlookers.
--
-- Gives  {now, kind, capacity, then for each that has not expired, in order, {ticket, weight, left, asked, held, about}},
--        `asked` and `held` as microseconds ago, `held` -1 while that is not known; {now}: nobody is in line
-- Effect none.
-- Cost   one read for each claim in line.

local answer = { now }
local ticket, id = 0, first
while id ~= '' do
  local entry = linked(id)
  if not (entry[TICKET] > ticket) then
    damaged('order')
  end
  ticket, id = entry[TICKET], entry[BEHIND]
  if entry[UNTIL] > now then
    answer[2], answer[3] = entry[KIND], entry[CAPACITY]
    local since = entry[HELD] == 0 and -1 or now - entry[HELD]
    insert(answer, { ticket, entry[WEIGHT], entry[UNTIL] - now, now - entry[ASKED], since, entry[ABOUT] })
  end
end
return answer
