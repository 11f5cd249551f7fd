-- revoke: ask a holder, by its ticket, to release. It learns of that at its next renewal.
--
-- ARGV   ticket
-- Gives  {now, 1 if it was asked, 0: nobody holds with that ticket}
-- Cost   as the walk.

local entry = holder_with(ARGV[1] + 0)
if entry then
  entry.revoked = '1'
  changed[entry.id] = true
end
commit()
return { now, entry and 1 or 0 }
