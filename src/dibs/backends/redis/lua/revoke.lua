-- revoke: ask a holder, by its ticket, to let go; it learns of that at its next renewal.
--
-- ARGV   ticket
-- Gives  {now, 1 if it was asked, 0: nobody holds with that ticket}
-- Cost   as the walk.

local ticket, done = ARGV[1] + 0, 0
for _, entry in ipairs(settle().holding) do
  if entry.ticket + 0 == ticket then
    done = 1
    entry.revoked = '1'
    changed[entry.id] = true
  end
end
commit()
return { now, done }
