-- evict: remove a holder by its ticket, never a waiter.
--
-- ARGV   ticket
-- Gives  {now, 1 if it was removed, 0: nobody holds with that ticket}
-- Cost   as the walk, twice.

local entry = holder_with(ARGV[1] + 0)
if entry then
  add_tombstone(entry.id, now + entry.waiting) -- a late copy of its join must not add it again
  sweep(entry.id)
end
commit()
return { now, entry and 1 or 0 }
