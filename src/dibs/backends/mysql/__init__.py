"""MySQL and MariaDB: a queue of claims in tables, or user locks of sessions. sql/tables.sql describes the layout.

Lease mode. `line.MysqlLine` unless another file is named; a routine is the file of that name in sql/.

| step       | call path                                                                                              |
|------------|--------------------------------------------------------------------------------------------------------|
| free path  | `take_now`, `leave_now`: `Pool.take_now`, `connection.MysqlConnection.trip`, TAKE or LEAVE of calls.py |
| join       | `join`, `executor.ask_once`, `Pool.exchange`, `MysqlConnection.exchange`, routine `join`               |
| wait       | `watch`; `subscriber.MysqlSubscriber._turn` asks routine `hear`, and tells the inbox                   |
| cancel     | `leave` with answered=False, routine `leave`, which leaves a tombstone                                 |
| release    | `leave`, `executor.ask_often`, routines `leave`, `settle` and `wake`; many at once: `leave_all`        |
| renew      | `renew`, routine `renew`; for names in which claims wait also `look`                                   |
| loss       | a renewal that does not find its claim; `answers.Epoch` sees that the tables were created anew         |

Session mode. `session/line.SessionLine` unless another file is named; `SessionPool` and `SessionClaims` are in
common/session_claims.py.

| step       | call path                                                                                              |
|------------|--------------------------------------------------------------------------------------------------------|
| free path  | `take_now`, `leave_now`: `SessionPool.take_idle`, `MysqlConnection.trip`, TAKE or GIVE of connection.py |
| join       | `join`, `_take`, `SessionPool.take`, `connection.Session.ask`, routine `take`                          |
| wait       | `SessionClaims.wait`; on the reply `SessionClaims.read`, `claims.MysqlClaim.hear`                      |
| cancel     | `leave` closes the connection, and `_quit` ends its statement in the server                            |
| release    | `leave`, `_drop`, `SessionPool.give`; many at once: `claims.Leaving`                                   |
| loss       | `Disconnects`, `SessionPool._ended`, `Me.news`; the renewal that follows finds it gone                 |
"""
