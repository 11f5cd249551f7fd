-- Permits with a lease (RPermitExpirableSemaphore): the number of free permits, and a sorted set with the end of each
-- taken one. Needs `name`, `deadlines`, `channel` and `publish`.

-- The ids of the n permits of a claim: its own, and those that follow it.
local function ids_of(id, n)
  local start, tail, ids = sub(id, 1, 12), struct.unpack('>I4', sub(id, 13, 16)), {}
  for index = 0, n - 1 do
    ids[index + 1] = start .. struct.pack('>I4', (tail + index) % 4294967296)
  end
  return ids
end

-- Remove permits, and count those that were there. In parts: the Lua stack is limited to some thousands.
local function remove(permits)
  local removed = 0
  for from = 1, #permits, 1000 do
    removed = removed + call('ZREM', deadlines, unpack(permits, from, math.min(from + 999, #permits)))
  end
  return removed
end

-- Return up to `most` permits whose lease is over.
local function reclaim(most)
  local over = call('ZRANGEBYSCORE', deadlines, 0, now_ms, 'LIMIT', 0, most)
  if over[1] then
    local free = call('INCRBY', name, remove(over))
    if free > 0 then
      redis.pcall(publish, channel, free)
    end
  end
end
