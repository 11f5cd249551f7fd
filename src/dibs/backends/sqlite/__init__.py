"""The embedded store: one SQLite file, many processes of one machine.

| call | path |
|---|---|
| free acquire | `SqliteQueue.take_now`: one INSERT that commits by itself |
| join, general | `queue.join` → `database.attempt` (`BEGIN IMMEDIATE`) → `atomic_queue.join` → methods of `table` |
| file busy | `queue._step` → `database.retry`: spins, then pauses; in asyncio in the client's thread |
| wait | `queue.watch` → `runtime/inbox.py` → `presence.receive`; the watchdog: `queue.renew` → `atomic_queue.look` |
| cancel | `queue.leave`, or `leave_all` by the watchdog → `atomic_queue.leave`; a tombstone if `answered` is False |
| free release | `SqliteQueue.leave_now`: one DELETE; it hands the lock over by `registration.wake` |
| release, general | `queue.leave` → `database.attempt` → `atomic_queue.leave`; then `registration.wake` |
| loss | `database._usable_connection`: the file was replaced; `presence.is_dead`: a process died; else the lease |
| first use | `database._open` → `registration.prepare` (`files.prepare`, `Presence`) → `registration.register` |
"""
