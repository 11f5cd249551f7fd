-- evict: remove a holder by its ticket, never a waiter.
--
-- ARGV   ticket
-- Gives  {now, 1 if it was removed, 0: nobody holds with that ticket}
-- Cost   as the walk, twice.

local ticket, done = ARGV[1] + 0, 0
for _, entry in ipairs(settle().holding) do
  if entry.ticket + 0 == ticket then
    done = 1
    bury(entry.id, now + entry.waiting) -- a late copy of its join must not stand again
    settle(entry.id)
    break
  end
end
commit()
return { now, done }
