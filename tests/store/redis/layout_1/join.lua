local id, channel, kind, place, about = ARGV[1], ARGV[2], ARGV[3], ARGV[8], ARGV[9]
local capacity, weight, lease = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local waiting, by = tonumber(ARGV[7]), tonumber(ARGV[10])
kept = KEYS[2] and BRIEFLY or LONGER
-- (floor.lua)
local function fresh(before, holds)
  top = math.max(top + 1, now, least())
  cover(top)
  local till = now + (holds and lease or waiting)
  return { id, top, before, '', channel, kind, capacity, weight, lease, waiting, till, now, holds and now or 0, 0, about }
end
if first == '' and now <= by and not stands[6] and kind ~= 'election' and now + lease + kept <= keeps then
  local own = fresh('', true)
  if covered == known then
    redis.call('HSET', key, id, cmsgpack.pack(own), 'first', id, 'last', id, 'top', number(top))
  else
    redis.call('HSET', key, id, cmsgpack.pack(own), 'first', id, 'last', id, 'top', number(top),
      'covered', number(covered))
  end
  return { now, top, 1, lease, -1, 0 }
end
-- (line.lua)
if now > by or is_buried(id) then
  return { now }
end
local holds, next = true, -1
if first ~= '' then
  local own = find(id)
  local seen = settle()
  next = upcoming(seen)
  if own then
    if entries[id] and own[UNTIL] <= now then
      unlink(own)
    elseif entries[id] then
      changed[id] = true
    end
    commit()
    return entries[id] and { now, unpack(standing(own, seen.holds[id], next)) } or { now }
  end
  local there = seen.holding[1] or seen.blocked
  if there and (there[KIND] ~= kind or there[CAPACITY] ~= capacity) then
    commit()
    return { now, there[KIND], there[CAPACITY] }
  end
  holds = not seen.blocked and seen.used + weight <= capacity
end
if not holds and place ~= 'line' then
  if place == 'outside' then
    outside = math.max(outside, now + waiting)
    write('outside', number(outside))
  end
  commit()
  return { now, 0, 0, 0, next, 0 }
end
local own = fresh(last, holds)
write('top', number(top))
if covered ~= known then
  write('covered', number(covered))
end
entries[id] = own
changed[id] = true
if first == '' then
  first = id
else
  linked(last)[BEHIND] = id
  changed[last] = true
end
last = id
announced = announced or (holds and kind == 'election')
commit()
return { now, unpack(standing(own, holds, holds and -1 or next)) }
