-- The floor: a bound for the tickets of all names whose own keys have expired.
--
-- KEYS[2]  a string, "<base> <high>": every ticket given is at most base + REACH, or at most high. `base` is a time
--          that the server's clock has shown. A ticket is above base + REACH only if that clock was set back, or a
--          quorum agreed on the ticket. Absent in a cluster: a script with two keys is refused while a slot is moved.
-- `covered` in a head is the highest ticket for which the floor is known to be high enough. So the floor is read and
-- raised only for names without a key, and once every REACH for each other name.

local REACH = 100000 -- a tenth of a second
local base, high

local function read_floor()
  local text = call('GET', KEYS[2])
  local there, above = string.match(text or '0 0', '^(%d+) (%d+)$')
  base, high = tonumber(there), tonumber(above)
  if not (base and base < MUCH and high < MUCH - 1) then
    damaged('floor')
  end
end

-- The lowest ticket above all tickets that a name without a key may have given.
local function least()
  if head or not KEYS[2] then
    return 0
  end
  read_floor()
  if now < base then -- the clock was set back
    high = max(high, base + REACH)
  end
  return high + 1
end

-- Raise the floor before a ticket is given.
local function cover(ticket)
  if not KEYS[2] then
    covered, kept = NO_FLOOR, LONGER
    return
  end
  if head and ticket <= covered + 0 then
    return
  end
  if not base then
    read_floor()
  end
  if not head or ticket > max(base + REACH, high) then
    base = max(base, now)
    high = ticket > base + REACH and max(high, ticket) or high
    call('SET', KEYS[2], format('%.0f %.0f', base, high), 'PX', format('%.0f', 2 * DAY / 1000))
  end
  covered = digits(max(base + REACH, high))
end
