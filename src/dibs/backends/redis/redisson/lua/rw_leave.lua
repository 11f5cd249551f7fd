-- leave of a read-write lock: of all holds of a holder, on both sides.
--
-- KEYS   the lock, the latch
-- ARGV   channel, the command that publishes, the latch's time in ms, "u" if a join was not answered, start of the keys
--        of readers, holder
-- Gives  1 if the claim was there, or has left before; else 0

-- (start.lua)
local name, latch = KEYS[1], KEYS[2]
local channel, publish, remembered, doubt, start, holder = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
-- (rw.lua)

if call('GET', latch) then
  return 1
end
local reads, writes = counts(holder)
if reads + writes == 0 then
  if doubt == 'u' then
    call('SET', latch, 0, 'PX', remembered)
  end
  return 0
end
call('HDEL', name, holder, holder .. ':write')
for n = 1, reads do
  call('DEL', read_key(holder, n))
end
call('SET', latch, settle(publish, channel, writes > 0 and 1 or 0), 'PX', remembered)
return 1
