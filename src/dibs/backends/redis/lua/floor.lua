-- The floor: what is left of the last tickets of all names whose own keys have expired.
--
-- KEYS[2]  a string, "<base> <high>": no ticket was given above base + REACH, nor above high. The server's clock has
--          shown `base`; a ticket is above base + REACH only if that clock was set back, or a quorum agreed on it.
--          Absent in a cluster: a script of two keys would be refused while their slot is moved.
-- A head says in `covered` up to which ticket the floor is known to be high enough. So the floor is read and raised for
-- names without a key, and every REACH for each of the others.

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

-- The lowest ticket that is above all that a name without a key may have given.
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

-- Before a ticket is given.
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
