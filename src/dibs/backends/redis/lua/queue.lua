-- The walk over a queue, and the only place that writes. Needs `head` and `stamp`.
--
-- A script reads, decides, and then writes once, in `commit`. So damage ends a script before its first write, and
-- nothing is half done. Cost of the walk: one read for each holder, and one for the first waiter.

local format, insert, max, min = string.format, table.insert, math.max, math.min
local DAY = 86400 * 1000000
local BRIEFLY, LONGER = 10, 300 -- seconds for which an idle name keeps its last ticket: with a floor, and without
local LATE = 600 -- seconds: if the key of an idle name would stay this much longer than needed, its expiry is lowered
local MUCH = 2 ^ 53 -- the first number from which a double cannot tell its successor
local MUCH_TEXT, ZERO, NOBODY = '9007199254740992', '0000000000000000', '----------------'
local NO_FLOOR = '9999999999999999'
local ELECTION = 'election        '
local MOST = 2000 -- arguments of one command: the Lua stack is limited to some thousands
local CLEARED = 8 -- expired tombstones that one script removes: a crowd may leave thousands

local function damaged(what)
  error('dibs-damaged ' .. what)
end

local function digits(value)
  return format('%016.0f', value)
end

local now = stamp + 0
local top, covered, keeps, kept, outside, oldest_tomb, next_tomb, mixed = 0, ZERO, 0, BRIEFLY, 0, 0, 0, false
local body = ''
if head then
  if find(head, '^[3-9]') then
    return redis.error_reply('DIBSLAYOUT newer')
  end
  if #head < 43 or not find(sub(head, 1, 43), '^2%d+$') then
    damaged('head')
  end
  top, covered, keeps = sub(head, 2, 17) + 0, sub(head, 18, 33), sub(head, 34, 43) + 0
  kept = covered == NO_FLOOR and LONGER or BRIEFLY
  body = sub(head, 44)
  if sub(body, 1, 1) == 's' then
    if not find(sub(body, 2, 50), '^%d+$') or #body < 50 then
      damaged('head')
    end
    outside, oldest_tomb, next_tomb = sub(body, 2, 17) + 0, sub(body, 18, 33) + 0, sub(body, 34, 49) + 0
    mixed = sub(body, 50, 50) ~= '0'
    body = sub(body, 51)
    if next_tomb >= MUCH - 1 or oldest_tomb > next_tomb then
      damaged('tombstones')
    end
  end
  if top >= MUCH - 1 then
    damaged('top')
  end
else
  local old = call('HMGET', key, 'first', 'last', 'top', 'keeps', 'tombs')
  if old[1] or old[2] or old[3] or old[4] or old[5] then
    return redis.error_reply('DIBSLAYOUT older')
  end
  local other = redis.pcall('GET', key)
  if type(other) == 'table' and not find(other.err, 'WRONGTYPE') then
    return other
  elseif other then
    return redis.error_reply('DIBSLAYOUT foreign')
  end
end

local fresh_tomb = next_tomb -- the number of the first tombstone that this script makes
local buried = {} -- the ids of the tombstones that this script makes
local latest_tomb = 0
local entries = {} -- claims that were read, by id; false: not in this queue
local changed = {} -- ids whose record must be written
local relinked = {} -- ids whose link must be written
local weighed = {} -- by id: the weight before this script changed it
local removed = {} -- fields to delete
local written = {} -- fields and values to write
local messages = {} -- by the channel of a client: its claims that now hold
local announced = false -- the listeners of the name must look
local is_new = false -- a claim is added

-- Parse a record, and refuse one that dibs cannot have written.
local function parse(text)
  local numbers = sub(text, 33, 177)
  if #numbers ~= 145 or not find(numbers, '^%d+$') or not find(sub(text, 194, 197), '^%d%d%d%d$') then
    damaged('record')
  end
  local about_at = 198 + sub(text, 194, 197)
  local entry = {
    id = sub(text, 1, 16), before = sub(text, 17, 32), ticket = sub(text, 33, 48), since = sub(text, 49, 64),
    span = sub(text, 65, 80), asked = sub(text, 81, 96), held = sub(text, 97, 112), revoked = sub(text, 113, 113),
    lease = sub(text, 114, 129), waiting = sub(text, 130, 145), weight = sub(text, 146, 161) + 0,
    capacity = sub(text, 162, 177) + 0, kind = sub(text, 178, 193), rest = sub(text, 162),
    channel = sub(text, 198, about_at - 1), about = sub(text, about_at),
  }
  if entry.ticket == ZERO or entry.lease == ZERO or entry.waiting == ZERO or entry.revoked > '1'
    or #text < about_at - 1 or entry.weight >= MUCH or entry.capacity >= MUCH then
    damaged('record')
  end
  for _, number in ipairs({ entry.ticket, entry.since, entry.span, entry.asked, entry.held, entry.lease,
    entry.waiting }) do
    if number >= MUCH_TEXT then
      damaged('record')
    end
  end
  entry.till = entry.since + entry.span
  -- A clock that was set back must not make a claim last longer than its lease. The new expiry is written, or it would
  -- be moved again and again.
  if not (entry.till <= now + entry.lease) then
    entry.since, entry.span, entry.till = stamp, entry.lease, now + entry.lease
    changed[entry.id] = true
  end
  return entry
end

local function packed(entry)
  return entry.id .. entry.before .. entry.ticket .. entry.since .. entry.span .. entry.asked .. entry.held
    .. entry.revoked .. entry.lease .. entry.waiting .. digits(entry.weight) .. entry.rest
end

local first, last = '', ''
if body ~= '' then
  local form, text, entry = sub(body, 1, 1), sub(body, 2)
  if form == 'q' then
    text = sub(body, 66)
  elseif form ~= 'a' then
    damaged('head')
  end
  entry = parse(text)
  first, last = entry.id, form == 'a' and entry.id or sub(body, 2, 17)
  entry.link = form == 'a' and '' or sub(body, 18, 65)
  entry.behind = sub(entry.link, 1, 16)
  entries[first] = entry
end

-- The record of a claim; false if it is not in this queue.
local function look_up(id)
  local entry = entries[id]
  if entry ~= nil then
    return entry
  end
  local read = call('HMGET', key, id, '>' .. id)
  if not read[1] then
    entries[id] = false
    return false
  end
  entry = parse(read[1])
  if entry.id ~= id then
    damaged('record')
  end
  entry.stored, entry.link = true, read[2] or ''
  entry.behind = sub(entry.link, 1, 16)
  if entry.behind == '' and id ~= last or entry.behind ~= '' and id == last then
    damaged('chain')
  end
  entries[id] = entry
  return entry
end

local function linked(id)
  return look_up(id) or damaged('chain')
end

-- The rule of core/rule.py: read the claims in order, up to the first waiter. `leaver`: the id of a claim that leaves.
local function walk(leaver)
  local seen = { holding = {}, holds = {}, freed = {}, gone = {}, blocked = false, used = 0, next = math.huge }
  local before, ticket, id = 0, ZERO, first
  while id ~= '' do
    local entry = linked(id)
    if not (entry.ticket > ticket) then
      damaged('order')
    end
    ticket = entry.ticket
    local old = weighed[id] or entry.weight
    local held_before = before + old <= entry.capacity
    before = before + old
    if id == leaver or entry.till <= now then
      insert(seen.gone, entry)
    else
      seen.next = min(seen.next, entry.till)
      if not (seen.used + entry.weight <= entry.capacity) then
        seen.blocked = entry
        break
      end
      seen.used = seen.used + entry.weight
      insert(seen.holding, entry)
      seen.holds[id] = true
      if not held_before then
        insert(seen.freed, entry)
      end
    end
    id = entry.behind
  end
  return seen
end

local function unlink(entry)
  local id, before, behind = entry.id, entry.before, entry.behind
  if id == first then
    first = behind
    last = behind == '' and '' or last
    if behind ~= '' then
      linked(behind) -- read its record, which moves into the head
    end
  else
    local ahead = linked(before)
    if ahead.behind ~= id then
      damaged('chain')
    end
    ahead.behind, ahead.link = behind, entry.link
    relinked[before] = true
    if behind == '' then
      last = before
    else
      linked(behind).before = before
      changed[behind] = true
    end
  end
  entries[id] = false
  changed[id], relinked[id] = nil, nil
  if entry.stored then
    insert(removed, id)
    insert(removed, '>' .. id)
  end
end

-- Walk, remove the expired claims and the leaver, and note who must be signalled.
local function sweep(leaver, lighter)
  local seen = walk(leaver)
  for _, entry in ipairs(seen.gone) do
    unlink(entry)
  end
  if seen.gone[1] and seen.gone[1].kind == ELECTION then
    announced = true
  end
  if seen.freed[1] then
    for _, entry in ipairs(seen.freed) do
      messages[entry.channel] = (messages[entry.channel] or '') .. entry.id .. 'y'
    end
  elseif (seen.gone[1] or lighter) and not seen.blocked and outside > now then
    announced = true
  end
  return seen
end

-- Sweep, and find the holder with a ticket.
local function holder_with(ticket)
  for _, entry in ipairs(sweep().holding) do
    if entry.ticket + 0 == ticket then
      return entry
    end
  end
end

-- Microseconds until the first claim that the walk met can expire; -1: it met none.
local function upcoming(seen)
  return seen.next == math.huge and -1 or seen.next - now
end

local function standing(entry, holds, next)
  return { entry.ticket + 0, holds and 1 or 0, entry.till - now, next, entry.revoked + 0 }
end

local function write(field, value)
  insert(written, field)
  insert(written, value)
end

local function has_tombstone(id)
  local by = next_tomb > oldest_tomb and call('HGET', key, '!' .. id)
  return by and by >= stamp
end

local function add_tombstone(id, by)
  buried[id] = true
  latest_tomb = max(latest_tomb, by)
  write('!' .. id, digits(by))
  write('=' .. digits(next_tomb), id)
  next_tomb = next_tomb + 1
end

local function clear_tombstones()
  for n = oldest_tomb, min(oldest_tomb + CLEARED, fresh_tomb) - 1 do
    local id = call('HGET', key, '=' .. digits(n)) or ''
    if buried[id] or has_tombstone(id) then
      break
    end
    insert(removed, '=' .. digits(n))
    insert(removed, '!' .. id)
    oldest_tomb = n + 1
  end
  if oldest_tomb == next_tomb then
    oldest_tomb, next_tomb = 0, 0
  end
end

local function in_parts(command, list)
  for from = 1, #list, MOST do
    call(command, key, unpack(list, from, min(from + MOST - 1, #list)))
  end
end

-- A full server refuses a script whose first write may need memory. A new claim must be refused like that. A leave or a
-- renewal needs no memory in the end, so it first deletes a field that does not exist.
local function set_fields()
  if is_new and not removed[1] then
    in_parts('HSET', written)
  elseif #written > MOST then
    call('HDEL', key, '-')
    in_parts('HSET', written)
  elseif written[1] then
    local answer = redis.pcall('HSET', key, unpack(written))
    if type(answer) == 'table' then
      call('HDEL', key, '-')
      call('HSET', key, unpack(written))
    end
  end
end

-- Write the fields of version 1 of the layout: its scripts find a holder of another kind there, and refuse.
local function warn_older()
  local id, far = 'dibs-layout-0002', MUCH - 1
  local kind = 'a queue of a newer version of dibs'
  write('first', id)
  write('last', id)
  write('keeps', digits(far))
  write(id, cmsgpack.pack({ id, 1, '', '', '', kind, 1, 1, far, far, far, 0, 0, 0, '{}' }))
end

local function link_to(entry)
  return entry.id .. entry.since .. entry.span
end

local function put_records()
  local latest = max(outside, now, latest_tomb)
  for id in pairs(changed) do
    local entry = entries[id]
    latest = max(latest, entry.till)
    if id ~= first then
      write(id, packed(entry))
      if entries[entry.before] then
        relinked[entry.before] = true
      else
        write('>' .. entry.before, link_to(entry))
      end
    end
  end
  for id in pairs(relinked) do
    local entry = entries[id]
    local next = entry.behind ~= '' and entries[entry.behind]
    entry.link = next and link_to(next) or entry.link
    if id ~= first and entry.behind == '' then
      insert(removed, '>' .. id)
    elseif id ~= first then
      write('>' .. id, entry.link)
    end
  end
  if first ~= '' and entries[first].stored then
    insert(removed, first)
    insert(removed, '>' .. first)
  end
  return latest
end

local function new_head()
  local text = '2' .. digits(top) .. covered .. sub(digits(keeps), 7)
  outside = outside > now and outside or 0
  mixed = mixed and first ~= ''
  if outside > 0 or next_tomb > oldest_tomb or mixed or first ~= '' and entries[first].kind == ELECTION then
    text = text .. 's' .. digits(outside) .. digits(oldest_tomb) .. digits(next_tomb) .. (mixed and '1' or '0')
  end
  if first == '' then
    return text
  elseif first == last then
    return text .. 'a' .. packed(entries[first])
  end
  return text .. 'q' .. last .. entries[first].link .. packed(entries[first])
end

local function commit()
  if next_tomb > oldest_tomb then
    clear_tombstones()
  end
  local is_touched = next(changed) ~= nil -- written even if unchanged: WAIT counts from the last write
  local latest, before = put_records() / 1000000, keeps
  local text = new_head()
  if not (is_touched or written[1] or removed[1] or head and text ~= head) then
    return
  end
  if latest + kept > keeps or first == '' and keeps > latest + 2 * kept + LATE then
    keeps = math.floor(latest + 2 * kept)
    text = new_head()
  end
  if not head then
    warn_older()
  end
  if is_touched or text ~= head then
    write('h', text)
  end
  set_fields()
  in_parts('HDEL', removed)
  if keeps ~= before then
    call('PEXPIREAT', key, format('%.0f', keeps * 1000))
  end
  -- Without the right to publish the change still counts: waiters also poll.
  for channel, message in pairs(messages) do
    redis.pcall('PUBLISH', channel, message)
  end
  if announced then
    redis.pcall('PUBLISH', key, 'l')
  end
end
