"""The Redis store: one server, a primary that sentinels watch, a cluster; and each of them as a member of a quorum.

| call | path, from the queue to the wire |
|---|---|
| take, lock free | line.take_now → socket → lua/join.lua; asyncio: aio_connection.RedisAioLine.take_now → ask_now |
| join | line.join → executor.ask_kept → servers.exchange → connection.exchange → lua/join.lua |
| wait | line.watch → subscriber.hear → common/subscriber.py; the message comes from lua/leave.lua |
| cancel | line.leave, or leave_all by the watchdog → executor.ask_often / ask_all → lua/leave.lua |
| release | line.leave_now → socket → lua/leave.lua; else line.leave |
| renew, loss | line.renew (watchdog) → executor.ask_all_kept → lua/renew.lua; nil: the claim is gone |
| inspect, break, list | inspection.line / evict / lines → lua/look.lua, lua/evict.lua, SCAN |
| refusals, redirections | executor._insist, errors in errors.py; which server: topology.py |

lua/head.lua describes the layout. Only `store` is loaded from outside, when a URL or a driver of Redis is given: a
missing driver shows there.
"""
