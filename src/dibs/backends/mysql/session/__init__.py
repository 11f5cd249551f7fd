"""Session mode: a claim is a user lock (GET_LOCK), held by a connection of its own.

| step    | path                                                                                                    |
|---------|---------------------------------------------------------------------------------------------------------|
| join    | `line.SessionLine.join`, `SessionPool.take`, `connection.Session.ask`                                   |
| wait    | `SessionClaims.wait`, and on the reply `SessionClaims.read`, `claim.MysqlClaim.hear`                    |
| cancel  | `line.SessionLine.leave` closes the connection, and `_quit` ends its statement in the server            |
| release | `line.SessionLine.leave`, `_drop`, `SessionPool.give`; many at once: `leaving.Leaving`                  |
| loss    | `Disconnects`, `SessionPool._ended`, `Me.news`; the renewal that follows finds it gone                  |

`SessionPool` and `SessionClaims` are in common/session_claims.py.
"""
