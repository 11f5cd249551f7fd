"""The PostgreSQL store: queues in tables, one routine for each operation (sql, routines.py). In lease mode:

| step    | path                                                                                                  |
|---------|-------------------------------------------------------------------------------------------------------|
| join    | `queue.PostgresqlQueue.take_now`, `PostgresqlConnection.ask_now`, sql/join.sql; else `join`            |
| wait    | `PostgresqlQueue.watch`, `subscriber.PostgresqlSubscriber`; without messages `_poll`                  |
| cancel  | `PostgresqlQueue.leave`, `executor.PostgresqlExecutor.ask_often`, sql/leave.sql; many: `leave_all`    |
| release | `PostgresqlQueue.leave_now`, `ask_now`, sql/leave.sql; else `leave`                                   |
| loss    | `PostgresqlQueue.renew`, sql/renew.sql, finds it gone                                                 |

In session mode; `SessionPool`, `SessionClaims` and `Disconnects` are in backends/common:

| step    | path                                                                                                |
|---------|-----------------------------------------------------------------------------------------------------|
| join    | `session.SessionQueue.take_now`, `ask_now`, `dibs_2_take` in sql/session.sql; else `join`           |
| wait    | `SessionQueue._taken`, `SessionClaims.wait`; on the reply `session_connection.PostgresqlClaim.hear` |
| cancel  | `SessionQueue.leave`, `_cancel_wait`: cancel the waiting statement, or drop its connection          |
| release | `SessionQueue.leave_now`, `ask_now`; else `leave`, `_give_back`; many: `leave_all`                  |
| loss    | `Disconnects`, `SessionPool._ended`, `ClientIdentity.news`; the renewal that follows finds it gone  |
"""
