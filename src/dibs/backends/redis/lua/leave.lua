-- leave: a claim goes, and the claims that hold because of that are told.
--
-- ARGV   id; if its join was not answered, also `waiting`: a copy of the join may still come within that time
-- Gives  1 if it stood, else 0; or {now, the same}
-- Effect Idempotent. Where a copy may come, the id is remembered, and its late join does nothing.
-- Cost   as the walk. A claim that stands alone takes one read and one write.

-- (head.lua)

local id, waiting = ARGV[1], ARGV[2]
local head = call('HGET', key, 'h')
local _, form_at = find(head or '', '^2%d+[aq]')
local is_plain = form_at == 44 and not waiting

-- Is it alone, and does the key not stay for too long after a long lease? The time does not matter, then.
if is_plain and sub(head, 44, 60) == 'a' .. id and find(sub(head, 93, 102), '^%d+$')
  and sub(head, 34, 43) - sub(head, 93, 102) < (sub(head, 18, 33) == '9999999999999999' and 1200 or 620) then
  local answer = redis.pcall('HSET', key, 'h', sub(head, 1, 43))
  if type(answer) == 'table' then -- memory is full: see set_fields
    call('HDEL', key, '-')
    call('HSET', key, 'h', sub(head, 1, 43))
  end
  return 1
end

-- (clock.lua)

-- Is it the first of several, and do the second and it each need all of the capacity? Then the second holds, and
-- nobody behind it does. The second and the third must be alive: the general path removes them if they are not.
if is_plain and sub(head, 44, 44) == 'q' and sub(head, 109, 124) == id then
  local next = sub(head, 61, 76)
  local read = call('HMGET', key, next, '>' .. next)
  local record, link, tail = read[1] or '', read[2] or '', sub(head, 254, 301)
  if find(sub(record, 33, 177), '^%d+$') and find(sub(record, 194, 197), '^%d%d%d%d$') and sub(record, 1, 16) == next
    and #record >= 197 + sub(record, 194, 197) and sub(record, 33, 48) > sub(head, 141, 156)
    and sub(record, 146, 193) == tail and sub(tail, 1, 16) == sub(tail, 17, 32) and sub(tail, 1, 16) > '0000000000000000'
    and sub(record, 49, 64) <= stamp and sub(record, 65, 80) <= sub(record, 114, 129)
    and sub(record, 114, 129) < '9007199254740992' and sub(record, 49, 64) + sub(record, 65, 80) > stamp + 0
    and (link == '') == (next == sub(head, 45, 60))
    and (link == '' or find(sub(link, 17, 48), '^%d+$') and sub(link, 17, 32) <= stamp
      and sub(link, 17, 32) + sub(link, 33, 48) > stamp + 0) then
    call('HDEL', key, next, '>' .. next)
    call('HSET', key, 'h', sub(head, 1, 43) .. (link == '' and 'a' or 'q' .. sub(head, 45, 60) .. link) .. record)
    redis.pcall('PUBLISH', sub(record, 198, 197 + sub(record, 194, 197)), next .. 'y')
    return 1
  end
end

-- (queue.lua)

local own = look_up(id)
settle(id)
if own and entries[id] then
  unlink(own)
end
if waiting then
  bury(id, now + waiting)
end
commit()
return { now, own and 1 or 0 }
