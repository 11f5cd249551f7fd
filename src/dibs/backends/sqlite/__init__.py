"""The embedded store: one SQLite file, many processes of one machine.

| call | path |
|---|---|
| free acquire | `line.take_now` → `database.at_once` → `table.join`: one INSERT that commits by itself |
| join, general | `line.join` → `database.attempt` (`BEGIN IMMEDIATE`) → `ledger.join` → `table.line`, `ticket`, `add` |
| file busy | `line._step` → `database.insist`: spins, then naps; in asyncio in the client's thread |
| wait | `line.watch` → `runtime/inbox.py` → `presence.receive`; the watchdog's look is `line.renew` → `ledger.look` |
| cancel | `line.leave` with `answered=False` → `ledger.leave`, which leaves a tombstone in memory |
| free release | `line.leave_now` → `database.at_once` → `table.leave`: one DELETE; hands over by `store.wake` |
| release, general | `line.leave` → `database.attempt` → `ledger.leave`; then `store.wake` |
| loss | `database._ready`: the file was replaced; `presence.is_dead`: a process died; else the lease, in `ledger` |
| first use | `database._open` → `store.settle_in` (`files.prepare`, `presence.Presence`) → `store.move_in` |
"""
