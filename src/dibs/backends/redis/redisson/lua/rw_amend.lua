-- Set the numbers of read and write holds of a holder, after a re-entry, a downgrade or one of several releases.
--
-- KEYS   the lock
-- ARGV   lease in ms, start of the keys of readers, holder, the number of read holds, the number of write holds,
--        channel, the command that publishes
-- Gives  {now, 0}, or {now, -1}: the holder is gone
-- Effect Never makes a reader a writer. A writer that becomes a reader wakes all waiters. Redisson wakes none then, so
--        its readers wait until the lease could be over.

-- (start.lua)
local name = KEYS[1]
local lease, start, holder, reads, writes = ARGV[1] + 0, ARGV[2], ARGV[3], ARGV[4] + 0, ARGV[5] + 0
local channel, publish = ARGV[6], ARGV[7]
-- (rw.lua)

local had_reads, had_writes = counts(holder)
if had_reads + had_writes == 0 then
  return { now, -1 }
elseif had_writes == 0 and writes > 0 then
  return { now, 0 } -- a late copy: it is a reader since
end
for n = had_reads + 1, reads do
  call('SET', read_key(holder, n), 1, 'PX', lease)
end
for n = reads + 1, had_reads do
  call('DEL', read_key(holder, n))
end
if reads > 0 then
  call('HSET', name, holder, reads)
elseif had_reads > 0 then
  call('HDEL', name, holder)
end
local left = call('PTTL', name)
if had_writes > 0 and writes > had_writes then
  call('HSET', name, holder .. ':write', writes)
  call('PEXPIRE', name, left + lease) -- as Redisson does
elseif had_writes > 0 and writes > 0 then
  call('HSET', name, holder .. ':write', writes)
  call('PEXPIRE', name, writes < had_writes and lease or math.max(left, lease))
else
  if had_writes > 0 then
    call('HDEL', name, holder .. ':write')
    call('HSET', name, 'mode', 'read')
    redis.pcall(publish, channel, 1)
  end
  call('PEXPIRE', name, reads < had_reads and readers_left() or math.max(left, lease))
end
return { now, 0 }
