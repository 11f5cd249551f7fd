"""The ZooKeeper store: one session for each client, nodes in Curator's formats.

| step            | call path                                                                                          |
|-----------------|----------------------------------------------------------------------------------------------------|
| take, free      | `line.take_now` → `stands.begin` → `stream.ask_now` (create and list in one write, one wait)       |
| join            | `line.join` → `queue.enter` or `permits.enter` → `port.ask_in` → `client.send` → `stream.send`     |
| wait            | `stands.Stand.wait_for` (a watch on the node ahead) → `line.watch` (the inbox reads the socket)    |
| grant           | `stream._deal` → `Stand.moved` → `Stand.now_holds`, or `queue.look_again` (one listing) before it  |
| renew, loss     | `line.renew` → `line._sync`; `client._beat_on` (the heart); `Stand.touched` (the own node's watch) |
| cancel          | `line.leave`, or `line.leave_all` from the watchdog → `queue.cleared` where a reply was lost       |
| release         | `line.leave_now` → `stream.ask_now` (one delete); `line.leave` → `queue.left` → `queue.removed`    |
| session is over | `client._bury` → `stands.ended` → `Stand.end`                                                      |
| connect         | `client._connect` (the heart) → `dial.Dial` → `dial.Hand` → `stream.begin`                         |
| inspect, break  | `line.line`, `line.evict` → `view.read`, `view.evict`                                              |
| cells           | `cells.put` → `port.ask_in`                                                                        |

Names and data of nodes, and the rule over them, are in `contenders`; what a client knows of one queue is in
`directory`. In `wire`, `codec` and `session` are the protocol without I/O.
"""
