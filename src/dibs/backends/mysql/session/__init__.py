"""Session mode: a claim is a user lock (GET_LOCK), held by a connection of its own.

| step      | call path, in `queue.SessionQueue` unless another file is named                                         |
|-----------|---------------------------------------------------------------------------------------------------------|
| free path | `take_now`, `leave_now`: `SessionPool.take_idle`, `MysqlConnection.trip`, TAKE or GIVE of connection.py |
| join      | `join`, `_take`, `SessionPool.take`, `MysqlConnection.begin` and `received`, routine `take`             |
| wait      | `SessionClaims.wait`, and on the reply `SessionClaims.read`, `connection.MysqlClaim.hear`               |
| cancel    | `leave` closes the connection, and `_quit` ends its statement in the server                             |
| release   | `leave`, `_left_soon`, `SessionPool.give`; many at once: `leave_all`                                    |
| loss      | `Disconnects`, `SessionPool._ended`, `ClientIdentity.news`; the next renewal finds it gone              |

`SessionPool` and `SessionClaims` are in common/session_claims.py.
"""
