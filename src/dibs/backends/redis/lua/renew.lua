-- renew: extend claims, each to its lease, or to its waiting lease while it waits; for a waiter this is its look.
--
-- ARGV   ids, all of this name
-- Gives  {now, then for each id {ticket, holds, left, next, revoked}, or nil: it is gone}
-- Effect Never revives what has expired, never shortens.
-- Cost   as the walk, and one read and one write for each id.

local seen = settle()
local answers = { now }
for index, id in ipairs(ARGV) do
  local own = find(id)
  answers[index + 1] = false
  if own and own[UNTIL] <= now then
    unlink(own)
  elseif own then
    local holds = seen.holds[id]
    own[UNTIL] = math.max(own[UNTIL], now + (holds and own[LEASE] or own[WAITING]))
    if holds and own[HELD] == 0 then
      own[HELD] = now
    end
    changed[id] = true
    answers[index + 1] = standing(own, holds, upcoming(seen))
  end
end
insert(removed, '-') -- see commit: a full memory must end no hold
commit()
return answers
