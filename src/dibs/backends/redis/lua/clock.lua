-- `stamp`: the server's time in microseconds, as 16 digits.
local clock = call('TIME')
local stamp = sub('0000000000' .. clock[1], -10) .. sub('000000' .. clock[2], -6)
