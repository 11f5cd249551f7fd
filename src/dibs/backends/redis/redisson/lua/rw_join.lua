-- join of a read-write lock.
--
-- KEYS   the lock, the latch
-- ARGV   lease in ms, "read" or "write", start of the keys of readers, holder, by
-- Gives  as mutex_join.lua

-- (start.lua)
local name, latch = KEYS[1], KEYS[2]
local lease, side, start, holder, by = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
-- (rw.lua)

if stamp > by or call('EXISTS', latch) == 1 then
  return { now }
end
local other = other_than_hash(name, true)
if other then
  return { now, other }
end
local reads, writes = counts(holder)
if reads + writes > 0 then
  local left = call('PTTL', side == 'read' and reads > 0 and read_key(holder, 1) or name)
  if left == -2 then -- its own lease has ended, although other readers keep the name
    return { now }
  end
  return { now, 1, micro(left), -1, 0 }
end
local mode = call('HGET', name, 'mode')
if not mode then
  call('HSET', name, 'mode', side, side == 'read' and holder or holder .. ':write', 1)
elseif mode == 'read' and side == 'read' then
  call('HINCRBY', name, holder, 1)
else
  return { now, 0, 0, micro(call('PTTL', name)), 0 }
end
if side == 'read' then
  call('SET', read_key(holder, 1), 1, 'PX', lease)
end
if not mode or call('PTTL', name) < lease + 0 then
  call('PEXPIRE', name, lease)
end
return stamp
