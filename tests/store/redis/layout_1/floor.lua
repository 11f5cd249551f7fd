local REACH = 100000
local known = tonumber(stands[7] or 0)
local covered = known
local base, high
local function read_floor()
  local text = redis.call('GET', KEYS[2])
  local there, above = string.match(text or '0 0', '^(%d+) (%d+)$')
  base, high = tonumber(there), tonumber(above)
  if not (base and base < MUCH and high < MUCH - 1) then
    damaged('floor')
  end
end
local function least()
  if stands[3] or not KEYS[2] then
    return 0
  end
  read_floor()
  if now < base then
    high = math.max(high, base + REACH)
  end
  return high + 1
end
local function cover(ticket)
  if ticket <= covered or not KEYS[2] then
    return
  end
  if not base then
    read_floor()
  end
  if not stands[3] or ticket > math.max(base + REACH, high) then
    base = math.max(base, now)
    high = ticket > base + REACH and math.max(high, ticket) or high
    redis.call('SET', KEYS[2], number(base) .. ' ' .. number(high), 'PX', number(2 * DAY / 1000))
  end
  covered = math.max(base + REACH, high)
end
