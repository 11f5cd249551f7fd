-- foremost: the first holder, for clients that follow a leader.
--
-- Gives  {now, ticket, left}; ticket 0: nobody holds
-- Effect none.
-- Cost   as the walk.

local holder = walk().holding[1]
return holder and { now, holder.ticket + 0, holder.till - now } or { now, 0, 0 }
