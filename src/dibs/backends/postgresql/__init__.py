"""The PostgreSQL store: lines in tables, one routine for each verb. In session mode:

| step    | path                                                                                                    |
|---------|---------------------------------------------------------------------------------------------------------|
| join    | `session.SessionLine.join`, `SessionPool.take`, `session_connection.SessionIo.exchange`                 |
| wait    | `SessionClaims.wait`, and on the reply `SessionClaims.read`, `session_claim.PostgresqlClaim.hear`       |
| cancel  | `session.SessionLine.leave`, `_withdraw`                                                                |
| release | `session.SessionLine.leave`, `_give_back`, `SessionPool.give`; many at once: `leave_all`                |
| loss    | `Disconnects`, `SessionPool._ended`, `Me.news`; the renewal that follows finds it gone                  |

`SessionPool` and `SessionClaims` are in common/session_claims.py.
"""
