"""MySQL and MariaDB: a queue of claims in tables (sql/tables.sql), or user locks of sessions (session/).

Lease mode, in `queue.MysqlQueue` unless another file is named. A routine is the file of that name in sql/.

| step       | call path                                                                                              |
|------------|--------------------------------------------------------------------------------------------------------|
| free path  | `take_now`, `leave_now`: `Pool.take_now`, `connection.MysqlConnection.trip`, TAKE or LEAVE of calls.py |
| join       | `join`, `executor.ask_once`, `Pool.exchange`, `MysqlConnection.exchange`, routine `join`               |
| wait       | `watch`; `subscriber.MysqlSubscriber._turn` calls routine `hear`, and delivers to the inbox            |
| cancel     | `leave`, or `leave_all` by the watchdog; routine `leave`, with a tombstone if answered=False           |
| release    | `leave`, `executor.ask_often`, routines `leave`, `walk` and `wake`; many at once: `leave_all`          |
| renew      | `renew`, routine `renew`; for names in which claims wait also `look`                                   |
| loss       | a renewal that does not find its claim; `errors.Epoch` sees that the tables were created anew          |
"""
