-- revoke: ask a holder, by its ticket, to let go; it hears of that at its next renewal.
--
-- ARGV   ticket
-- Gives  {now, 1 if it was asked, 0: nobody holds with that ticket}
-- Cost   as the walk.

local ticket, found = tonumber(ARGV[1]), 0
for _, entry in ipairs(settle().holding) do
  if entry[TICKET] == ticket then
    found = 1
    entry[REVOKED] = 1
    changed[entry[ID]] = true
  end
end
commit()
return { now, found }
