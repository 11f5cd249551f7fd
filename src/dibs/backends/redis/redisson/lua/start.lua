-- The start of every script. `stamp`: the server's time in microseconds, as 16 digits. `now_ms`: the same in
-- milliseconds, the unit of Redisson.
local call, sub = redis.call, string.sub
local clock = call('TIME')
local stamp = sub('0000000000' .. clock[1], -10) .. sub('000000' .. clock[2], -6)
local now, now_ms = stamp + 0, math.floor((stamp + 0) / 1000)

-- Milliseconds as microseconds; of a key or member that does not end, -1.
local function micro(ms)
  return ms < 0 and -1 or ms * 1000
end

-- What else than a hash of `field`s the key is; nil: it is such a hash, or free.
local function other_than_hash(key, is_rw)
  local kind = call('TYPE', key).ok
  if kind == 'none' then
    return nil
  elseif kind ~= 'hash' then
    return kind
  elseif call('HEXISTS', key, 'h') == 1 then
    return 'dibs'
  elseif (call('HEXISTS', key, 'mode') == 1) ~= is_rw then
    return is_rw and 'mutex' or 'rw'
  end
end
