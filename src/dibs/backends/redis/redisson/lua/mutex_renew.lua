-- Renew locks, fair ones as well.
--
-- KEYS   locks of one slot
-- ARGV   for each: its lease in ms, its holder
-- Gives  {now, then for each the microseconds that are left, or -1: the holder is gone}
-- Effect Never shortens.

-- (start.lua)
local answers = { now }
for n, name in ipairs(KEYS) do
  local lease, left = ARGV[2 * n - 1] + 0, -1
  if call('HEXISTS', name, ARGV[2 * n]) == 1 then
    left = call('PTTL', name)
    if left < lease then
      call('PEXPIRE', name, lease)
      left = lease
    end
  end
  answers[n + 1] = micro(left)
end
return answers
