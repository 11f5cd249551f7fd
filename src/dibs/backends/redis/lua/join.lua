-- join: add a claim to the queue. It holds if it fits.
--
-- KEYS   the queue, the floor
-- ARGV   description (the end of a record, from `lease` on), place ("l" in the queue, "o" outside, "n" nowhere), id, by
-- Gives  now, in 16 digits                           it holds for its whole lease; `now` is also its ticket
--        {now}                                       void: it came too late, has a tombstone, or has expired
--        {now, ticket, holds, left, next, revoked}   its standing; ticket 0: it was not added
--        {now, kind, capacity}                       the queue has another kind or capacity
-- Effect A claim that does not fit waits: in the queue, outside (the head then says so), or nowhere. A repeated join
--        with the same id only reports the standing, and moves or extends nothing.
-- Cost   as the walk. A free queue, and one whose first claim needs all of the capacity, take one read and one write.

-- (head.lua)

local about, place, id, by = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- (clock.lua)
local found = call('HMGET', key, 'h', id)
local head = found[1] or ''
local _, form_at = find(head, '^2%d+[aq]?')
-- The ticket is the time, and neither the floor nor the key's expiry needs to be changed.
local is_plain = form_at and form_at <= 44 and form_at >= 43 and stamp > sub(head, 2, 17) and stamp <= sub(head, 18, 33)
  and stamp <= by and sub(head, 34, 43) - clock[1] - sub(about, 1, 10) > (KEYS[2] and 12 or 302)

if is_plain and #head == 43 and sub(about, 65, 80) ~= 'election        ' then
  call('HSET', key, 'h', '2' .. stamp .. sub(head, 18) .. 'a' .. id .. '----------------' .. stamp .. stamp
    .. sub(about, 1, 16) .. stamp .. stamp .. '0' .. about)
  return stamp
end

-- If the first claim is live, of this kind, and needs all of the capacity, then no claim behind it holds. The second
-- must be live, too, because only the general path removes expired claims. The first record begins after `at`.
if is_plain and form_at == 44 and place ~= 'o' and not found[2] then
  local is_alone = sub(head, 44, 44) == 'a'
  local at = is_alone and 44 or 108
  local since, span = sub(head, at + 49, at + 64), sub(head, at + 65, at + 80)
  if find(sub(head, at + 33, at + 177), '^%d+$') and sub(head, at + 1, at + 16) ~= id
    and sub(head, at + 162, at + 193) == sub(about, 49, 80)
    and sub(head, at + 146, at + 161) == sub(head, at + 162, at + 177) and sub(about, 33, 48) > '0000000000000000'
    and since <= stamp and span <= sub(head, at + 114, at + 129) and since + span > stamp + 0
    and (is_alone or find(sub(head, 77, 108), '^%d+$') and sub(head, 77, 92) <= stamp
      and sub(head, 77, 92) + sub(head, 93, 108) > stamp + 0) then
    local next = since + span - stamp
    if not is_alone then
      next = math.min(next, sub(head, 77, 92) + sub(head, 93, 108) - stamp)
    end
    if place == 'n' then
      return { stamp + 0, 0, 0, 0, next, 0 }
    end
    local waiting, before = sub(about, 17, 32), sub(head, 45, 60) -- the last claim, which may be the only one
    local record = id .. before .. stamp .. stamp .. waiting .. stamp .. '00000000000000000' .. about
    local start = '2' .. stamp .. sub(head, 18, 43) .. 'q' .. id
    if is_alone then
      call('HSET', key, 'h', start .. id .. stamp .. waiting .. sub(head, 45), id, record)
    else
      call('HSET', key, 'h', start .. sub(head, 61), id, record, '>' .. before, id .. stamp .. waiting)
    end
    return { stamp + 0, stamp + 0, 0, waiting + 0, next, 0 }
  end
end

head = found[1]
-- (queue.lua)
-- (floor.lua)

local kind, capacity, weight = sub(about, 65, 80), sub(about, 49, 64) + 0, sub(about, 33, 48) + 0
kept = KEYS[2] and BRIEFLY or LONGER
if stamp > by or has_tombstone(id) then
  return { now }
end
local holds, next = true, -1
if first ~= '' then
  local own = look_up(id)
  local seen = sweep()
  next = upcoming(seen)
  if own then
    if entries[id] and own.till <= now then
      unlink(own)
    elseif entries[id] then
      changed[id] = true -- see commit
    end
    commit()
    return entries[id] and { now, unpack(standing(own, seen.holds[id], next)) } or { now }
  end
  local there = seen.holding[1] or seen.blocked
  if there and (there.kind ~= kind or there.capacity ~= capacity) then
    commit()
    return { now, there.kind, there.capacity }
  end
  holds = not seen.blocked and seen.used + weight <= capacity
end
if not holds and place ~= 'l' then
  if place == 'o' then
    outside = max(outside, now + sub(about, 17, 32))
  end
  commit()
  return { now, 0, 0, 0, next, 0 }
end
top = max(top + 1, now, least())
cover(top)
local span = holds and sub(about, 1, 16) or sub(about, 17, 32)
local own = parse(id .. (first == '' and NOBODY or last) .. digits(top) .. stamp .. span .. stamp
  .. (holds and stamp or ZERO) .. '0' .. about)
own.link, own.behind = '', ''
entries[id] = own
changed[id], is_new = true, true
mixed = mixed or weight == 0 and first ~= '' and entries[first].weight > 0
if first == '' then
  first = id
else
  local before = linked(last)
  before.behind = id
  relinked[last] = true
end
last = id
announced = announced or holds and kind == ELECTION
commit()
return { now, unpack(standing(own, holds, holds and -1 or next)) }
