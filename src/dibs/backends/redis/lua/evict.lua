-- evict: remove a holder by its ticket, never a waiter.
--
-- ARGV   ticket
-- Gives  {now, 1 if it was removed, 0: nobody holds with that ticket}
-- Cost   as the walk, twice.

local ticket, found = tonumber(ARGV[1]), 0
for _, entry in ipairs(settle().holding) do
  if entry[TICKET] == ticket then
    found = 1
    bury(entry[ID], now + entry[WAITING]) -- a late copy of its join must not stand again
    settle(entry[ID])
    break
  end
end
commit()
return { now, found }
