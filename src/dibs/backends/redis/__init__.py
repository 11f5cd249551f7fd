"""The Redis store: one server, a primary that sentinels watch, or a cluster; each can be a member of a quorum.

| call | path, from the queue to the wire |
|---|---|
| take, lock free | free_path.take_now → socket → lua/join.lua; asyncio: aio_connection.AioFreePath.take_now → ask_now |
| join | queue.join → executor.ask_replicated → servers.exchange → connection.exchange → lua/join.lua |
| wait | queue.watch → subscriber.hear → common/subscriber.py; lua/leave.lua sends the message |
| cancel | queue.leave, or leave_all by the watchdog → executor.ask_often / ask_all → lua/leave.lua |
| release | free_path.leave_now → socket → lua/leave.lua; asyncio: AioFreePath.leave_now; else queue.leave |
| release of a lost lock | `leave` answers False, and QueueGrantor._left of core/acquire.py raises LockLost |
| renew, loss | queue.renew (watchdog) → executor.ask_all_replicated → lua/renew.lua; nil: the claim is gone |
| inspect, break, list | queue.inspect / evict / page → lua/look.lua, lua/evict.lua, SCAN |
| refusals, redirections | executor._insist; their meaning: errors.py; which server has a key: topology.py |

lua/head.lua describes the layout. context.py has the parts that all of these share. Only `store` is imported from
outside, when a URL or driver of Redis is given, so a missing driver is reported there.
"""
