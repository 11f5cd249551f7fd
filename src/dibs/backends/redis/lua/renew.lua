-- renew: extend claims, each to its lease, or to its waiting lease while it waits. A waiter also polls by this.
--
-- ARGV   ids, all of this name
-- Gives  {now, then for each id {ticket, holds, left, next, revoked}, or nil: it is gone}
-- Effect Never revives a claim that has expired, never shortens.
-- Cost   as the walk, and one read and one write for each id.

local seen = sweep()
local answers = { now }
for index, id in ipairs(ARGV) do
  local own = look_up(id)
  answers[index + 1] = false
  if own and own.till <= now then
    unlink(own)
  elseif own then
    local holds = seen.holds[id]
    local span = holds and own.lease or own.waiting
    if now + span > own.till then
      own.since, own.span, own.till = stamp, span, now + span
    end
    if holds and own.held == ZERO then
      own.held = stamp
    end
    changed[id] = true
    answers[index + 1] = standing(own, holds, upcoming(seen))
  end
end
commit()
return answers
