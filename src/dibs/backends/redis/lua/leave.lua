-- leave: remove a claim, and signal the claims that hold because of that.
--
-- ARGV   id; if its join was not answered, also `waiting`: a copy of the join may still arrive within that time
-- Gives  1 if the claim was there, else 0; or {now, 1 or 0}
-- Effect Idempotent. If a copy of the join may still arrive, a tombstone makes it void.
-- Cost   as the walk. A claim without others takes one read and one write.

-- (head.lua)

local id, waiting = ARGV[1], ARGV[2]
local head = call('HGET', key, 'h')
local _, form_at = find(head or '', '^2%d+[aq]')
local is_plain = form_at == 44 and not waiting

-- The only claim. The time is not needed, unless the key would stay for too long after a long lease.
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

-- The first of several. If it and the second each need all of the capacity, then the second holds now, and no claim
-- behind it. The second and the third must be live, because only the general path removes expired claims.
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
sweep(id)
if own and entries[id] then
  unlink(own)
end
if waiting then
  add_tombstone(id, now + waiting)
end
commit()
return { now, own and 1 or 0 }
