local id, waiting, kind, doubt = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == 'unanswered'
if id == first and id == last and not doubt and not stands[6] and kind ~= 'election' and outside <= now then
  redis.call('HDEL', key, id, 'first', 'last')
  if keeps > now + 2 * kept + LATE then
    redis.call('HSET', key, 'keeps', number(now + 2 * kept))
    redis.call('PEXPIREAT', key, number(math.floor((now + 2 * kept) / 1000)))
  end
  return { now, 1 }
end
-- (line.lua)
local own = find(id)
settle(id)
if own and entries[id] then
  unlink(own)
end
if doubt then
  bury(id, now + waiting)
end
commit()
return { now, own and 1 or 0 }
