-- Close a latch (RCountDownLatch), if it is open.
--
-- KEYS   the latch, the mark of this request
-- ARGV   channel, the command that publishes, the mark's time in ms, count, by
-- Gives  {now, 1 if this request closed it, the present count}; {now, -1}: it came too late; {now, kind}: no latch

-- (start.lua)
local name, mark = KEYS[1], KEYS[2]
local channel, publish, remembered, count, by = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local kind = call('TYPE', name).ok
if kind ~= 'none' and kind ~= 'string' then
  return { now, kind }
end
if call('EXISTS', mark) == 1 then
  return { now, 1, (call('GET', name) or 0) + 0 }
elseif stamp > by then
  return { now, -1 }
elseif kind == 'string' then
  return { now, 0, tonumber(call('GET', name)) or -1 }
end
call('SET', name, count)
call('SET', mark, 1, 'PX', remembered)
redis.pcall(publish, channel, 1)
return { now, 1, count + 0 }
