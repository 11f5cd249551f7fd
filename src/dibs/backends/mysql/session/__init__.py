"""Session mode: a claim is a user lock (GET_LOCK), held by a connection of its own.

| step      | call path, in `line.SessionQueue` unless another file is named                                          |
|-----------|---------------------------------------------------------------------------------------------------------|
| free path | `take_now`, `leave_now`: `SessionPool.take_idle`, `MysqlConnection.trip`, TAKE or GIVE of connection.py |
| join      | `join`, `_take`, `SessionPool.take`, `connection.Session.ask`, routine `take`                           |
| wait      | `SessionClaims.wait`, and on the reply `SessionClaims.read`, `claims.MysqlClaim.hear`                   |
| cancel    | `leave` closes the connection, and `_quit` ends its statement in the server                             |
| release   | `leave`, `_drop`, `SessionPool.give`; many at once: `claims.Leaving`                                    |
| loss      | `Disconnects`, `SessionPool._ended`, `ClientIdentity.news`; the renewal that follows finds it gone      |

`SessionPool` and `SessionClaims` are in common/session_claims.py.
"""
