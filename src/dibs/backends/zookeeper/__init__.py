"""The ZooKeeper store: one session for each client, nodes in Curator's formats.

| step            | call path                                                                                          |
|-----------------|----------------------------------------------------------------------------------------------------|
| take, free      | `queue.take_now` → `node_claims.begin` → `exchange.ask_now` (create and list in one write)         |
| join            | `queue.join` → `lock_queue.enter` or `semaphore_queue.enter` → `executor.ask_in` → `exchange.send` |
| wait            | `NodeClaim.wait_for` (a watch on the node ahead) → `queue.watch` (the inbox reads the socket)      |
| grant           | `exchange._dispatch` → `NodeClaim.moved` → `now_holds`, or `lock_queue.look_again` (one listing)   |
| renew, loss     | `queue.renew` → `queue._sync`; `client._beat_on` (the heart); `NodeClaim.touched` (the own watch)  |
| cancel          | `queue.leave`, or `queue.leave_all` from the watchdog → `queue._search` if a reply was lost        |
| release         | `queue.leave_now` → `exchange.ask_now` (one delete); `queue.leave` → `executor.delete_each`        |
| session is over | `client._bury` → `node_claims.ended` → `NodeClaim.end`                                             |
| connect         | `client._connect` (the heart) → `dial.Dial` → `dial.Handshake` → `exchange.begin`                  |
| inspect, break  | `queue.inspect`, `queue.evict` → `inspect.read`, `inspect.evict`                                   |
| cells           | `cells.put` → `executor.ask_in`                                                                    |

Names and data of nodes, and the rule over them, are in `queue_rule`. What a client knows about one queue is in
`directory`. In `wire`, `codec` and `session` are the protocol without I/O.
"""
