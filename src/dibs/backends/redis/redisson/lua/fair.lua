-- The queue of a fair lock: a list of holder ids, and a sorted set with the instant until which each may wait.
-- Needs `queue` and `deadlines`. Removes waiters at the head whose time is over.
local function purge()
  while true do
    local head = call('LINDEX', queue, 0)
    local deadline = head and call('ZSCORE', deadlines, head)
    if not deadline or deadline + 0 > now_ms then
      return head
    end
    call('ZREM', deadlines, head)
    call('LPOP', queue)
  end
end
