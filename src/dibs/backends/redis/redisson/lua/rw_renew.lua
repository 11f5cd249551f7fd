-- Renew holds of read-write locks.
--
-- KEYS   locks of one slot
-- ARGV   for each: its lease in ms, start of the keys of readers, its holder
-- Gives  {now, then 1 for each, or 0: the holder is gone}

-- (start.lua)
local name, start
-- (rw.lua)
local answers = { now }
for index = 1, #KEYS do
  local lease, holder = ARGV[3 * index - 2], ARGV[3 * index]
  name, start = KEYS[index], ARGV[3 * index - 1]
  local reads, writes = counts(holder)
  local holds = writes > 0
  for n = 1, reads do
    holds = call('PEXPIRE', read_key(holder, n), lease) == 1 or holds
  end
  if holds and call('PTTL', name) < lease + 0 then
    call('PEXPIRE', name, lease)
  end
  answers[index + 1] = holds and 1 or 0
end
return answers
