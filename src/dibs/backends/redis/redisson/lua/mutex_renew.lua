-- Renew locks, fair ones as well.
--
-- KEYS   locks of one slot
-- ARGV   for each: its lease in ms, its holder
-- Gives  {now, then 1 for each, or 0: the holder is gone}

-- (start.lua)
local answers = { now }
for n, name in ipairs(KEYS) do
  local holds = call('HEXISTS', name, ARGV[2 * n])
  if holds == 1 then
    call('PEXPIRE', name, ARGV[2 * n - 1])
  end
  answers[n + 1] = holds
end
return answers
