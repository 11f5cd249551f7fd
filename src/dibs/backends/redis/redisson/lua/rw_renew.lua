-- Renew holds of read-write locks.
--
-- KEYS   locks of one slot
-- ARGV   for each: its lease in ms, start of the keys of readers, its holder
-- Gives  {now, then for each the microseconds that are left, or -1: the holder is gone}
-- Effect Never shortens.

-- (start.lua)
local name, start
-- (rw.lua)
local answers = { now }
for index = 1, #KEYS do
  local lease, holder, left = ARGV[3 * index - 2] + 0, ARGV[3 * index], -1
  name, start = KEYS[index], ARGV[3 * index - 1]
  local reads, writes = counts(holder)
  local holds = writes > 0
  for n = 1, reads do
    local key = read_key(holder, n)
    local there = call('PTTL', key)
    if there >= 0 and there < lease then
      call('PEXPIRE', key, lease)
    end
    holds = holds or there >= 0
  end
  if holds then
    left = call('PTTL', name)
    if left < lease then
      call('PEXPIRE', name, lease)
    end
    left = lease -- of a reader; the name may stay for longer
  end
  answers[index + 1] = micro(left)
end
return answers
