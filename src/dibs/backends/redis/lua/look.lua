-- look: the claims of a queue, for `inspect` and listings.
--
-- Gives  {now, kind, capacity, then for each live claim, in order, {ticket, weight, left, asked, held, about}}; {now}:
--        the queue is empty. `asked` and `held` are microseconds ago; `held` is -1 while it is not known
-- Effect none.
-- Cost   one read for each claim in the queue.

local answer = { now }
local ticket, id = ZERO, first
while id ~= '' do
  local entry = linked(id)
  if not (entry.ticket > ticket) then
    damaged('order')
  end
  ticket, id = entry.ticket, entry.behind
  if entry.till > now then
    answer[2], answer[3] = entry.kind, entry.capacity
    local held = entry.held == ZERO and -1 or now - entry.held
    insert(answer, { ticket + 0, entry.weight, entry.till - now, now - entry.asked, held, entry.about })
  end
end
return answer
