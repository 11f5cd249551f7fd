local MOST = 2000
local insert = table.insert
local CLEARED = 8
local oldest_tomb, next_tomb = 0, 0
if stands[6] then
  local from, to = string.match(stands[6], '^(%d+) (%d+)$')
  oldest_tomb, next_tomb = tonumber(from or 0), tonumber(to or 0)
  if next_tomb > MUCH then
    damaged('tombs')
  end
end
local fresh_tomb = next_tomb
local buried = {}
local entries = {}
local changed = {}
local weighed = {}
local removed = {}
local written = {}
local letters = {}
local announced = false
local function is_sound(entry)
  return entry[TICKET] > 0 and entry[TICKET] < MUCH and entry[WEIGHT] >= 0 and entry[WEIGHT] < MUCH
    and entry[CAPACITY] >= 0 and entry[CAPACITY] < MUCH and entry[LEASE] > 0 and entry[LEASE] < MUCH
    and entry[WAITING] > 0 and entry[WAITING] < MUCH and entry[UNTIL] >= 0 and entry[UNTIL] < MUCH
    and entry[ASKED] >= 0 and entry[ASKED] < MUCH and entry[HELD] >= 0 and entry[HELD] < MUCH
    and (entry[REVOKED] == 0 or entry[REVOKED] == 1)
    and type(entry[CLIENT]) == 'string' and type(entry[KIND]) == 'string' and type(entry[ABOUT]) == 'string'
end
local function find(id)
  local entry = entries[id]
  if entry ~= nil then
    return entry
  end
  local text = redis.call('HGET', key, id)
  if not text then
    entries[id] = false
    return false
  end
  entry = cmsgpack.unpack(text)
  if type(entry) ~= 'table' or #entry ~= ABOUT or entry[ID] ~= id or not is_sound(entry) then
    damaged('record')
  end
  if not (entry[UNTIL] <= now + entry[LEASE]) then
    entry[UNTIL] = now + entry[LEASE]
    changed[id] = true
  end
  entries[id] = entry
  return entry
end
local function linked(id)
  return find(id) or damaged('chain')
end
local function walk(leaver)
  local seen = { holding = {}, holds = {}, freed = {}, gone = {}, blocked = false, used = 0, next = math.huge }
  local before, ticket, id = 0, 0, first
  while id ~= '' do
    local entry = linked(id)
    if not (entry[TICKET] > ticket) then
      damaged('order')
    end
    ticket = entry[TICKET]
    local old = weighed[id] or entry[WEIGHT]
    local held_before = before + old <= entry[CAPACITY]
    before = before + old
    if id == leaver or entry[UNTIL] <= now then
      insert(seen.gone, entry)
    else
      seen.next = math.min(seen.next, entry[UNTIL])
      if not (seen.used + entry[WEIGHT] <= entry[CAPACITY]) then
        seen.blocked = entry
        break
      end
      seen.used = seen.used + entry[WEIGHT]
      insert(seen.holding, entry)
      seen.holds[id] = true
      if not held_before then
        insert(seen.freed, entry)
      end
    end
    id = entry[BEHIND]
  end
  return seen
end
local function unlink(entry)
  local id, before, behind = entry[ID], entry[BEFORE], entry[BEHIND]
  local was_first, was_last = id == first, id == last
  if was_first then
    first = behind
  else
    linked(before)[BEHIND] = behind
    changed[before] = true
  end
  if was_last then
    last = was_first and '' or before
  elseif not was_first then
    linked(behind)[BEFORE] = before
    changed[behind] = true
  end
  entries[id] = false
  changed[id] = nil
  insert(removed, id)
end
local function settle(leaver, lighter)
  local seen = walk(leaver)
  for _, entry in ipairs(seen.gone) do
    unlink(entry)
  end
  if seen.gone[1] and seen.gone[1][KIND] == 'election' then
    announced = true
  end
  if seen.freed[1] then
    for _, entry in ipairs(seen.freed) do
      letters[entry[CLIENT]] = (letters[entry[CLIENT]] or '') .. entry[ID] .. 'y'
    end
  elseif (seen.gone[1] or lighter) and not seen.blocked and outside > now then
    announced = true
  end
  return seen
end
local function upcoming(seen)
  return seen.next == math.huge and -1 or seen.next - now
end
local function standing(entry, holds, next)
  return { entry[TICKET], holds and 1 or 0, entry[UNTIL] - now, next, entry[REVOKED] }
end
local function write(field, value)
  insert(written, field)
  insert(written, value)
end
local function is_buried(id)
  local by = stands[6] and redis.call('HGET', key, '~' .. id)
  return by and tonumber(by) >= now
end
local function bury(id, by)
  buried[id] = true
  write('~' .. id, number(by))
  write('#' .. number(next_tomb), id)
  next_tomb = next_tomb + 1
end
local function clear_tombs()
  for n = oldest_tomb, math.min(oldest_tomb + CLEARED, fresh_tomb) - 1 do
    local id = redis.call('HGET', key, '#' .. number(n)) or ''
    if buried[id] or is_buried(id) then
      break
    end
    insert(removed, '#' .. number(n))
    insert(removed, '~' .. id)
    oldest_tomb = n + 1
  end
  local numbers = number(oldest_tomb) .. ' ' .. number(next_tomb)
  if oldest_tomb < next_tomb and numbers ~= stands[6] then
    write('tombs', numbers)
  elseif oldest_tomb >= next_tomb and stands[6] then
    insert(removed, 'tombs')
  end
end
local function in_parts(command, list)
  if #list <= MOST then
    return list[1] and redis.call(command, key, unpack(list))
  end
  for from = 1, #list, MOST do
    redis.call(command, key, unpack(list, from, math.min(from + MOST - 1, #list)))
  end
end
local function commit()
  if first == '' then
    if stands[1] then
      insert(removed, 'first')
      insert(removed, 'last')
    end
  else
    if first ~= stands[1] then
      write('first', first)
    end
    if last ~= stands[2] then
      write('last', last)
    end
  end
  local latest = math.max(outside, now)
  if oldest_tomb < next_tomb or stands[6] then
    clear_tombs()
  end
  for id in pairs(changed) do
    local entry = entries[id]
    latest = math.max(latest, entry[UNTIL])
    write(id, cmsgpack.pack(entry))
  end
  local changes = written[1] and latest + kept > keeps or first == '' and keeps > latest + 2 * kept + LATE
  if changes then
    keeps = latest + 2 * kept
    write('keeps', number(keeps))
  end
  if removed[1] and written[1] then
    redis.call('HDEL', key, '-')
  end
  in_parts('HSET', written)
  in_parts('HDEL', removed)
  if changes then
    redis.call('PEXPIREAT', key, number(math.floor(keeps / 1000)))
  end
  for client, letter in pairs(letters) do
    redis.pcall('PUBLISH', client, letter)
  end
  if announced then
    redis.pcall('PUBLISH', key, 'l')
  end
end
