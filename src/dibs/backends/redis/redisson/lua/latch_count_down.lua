-- Count a latch down.
--
-- KEYS   the latch, the mark of this request
-- ARGV   channel, the command that publishes, the mark's time in ms, how much, by
-- Gives  {now, the count that is left}; {now, -1}: it came too late; {now, kind}: no latch

-- (start.lua)
local name, mark = KEYS[1], KEYS[2]
local channel, publish, remembered, less, by = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local kind = call('TYPE', name).ok
if kind == 'none' then
  return { now, 0 }
elseif kind ~= 'string' then
  return { now, kind }
end
if call('EXISTS', mark) == 1 then
  return { now, call('GET', name) + 0 }
elseif stamp > by then
  return { now, -1 }
end
local left = call('DECRBY', name, less)
call('SET', mark, 1, 'PX', remembered)
if left > 0 then
  return { now, left }
end
call('DEL', name)
redis.pcall(publish, channel, 0)
return { now, 0 }
