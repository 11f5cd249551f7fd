"""The shared parts of the stores: connections, requests, messages, options, and the lifecycle of a store.

| module            | contents                                                                                  |
|-------------------|-------------------------------------------------------------------------------------------|
| `connections`     | the pool of the sync API, and connecting in the background                                |
| `round_trip`      | the measured round trip to a server, and the time limits that follow from it              |
| `aio_connections` | the pool of the async API                                                                 |
| `executor`        | send once, or repeat until there is a reply; unsent, unknown, refused                     |
| `subscriber`      | the connection on which a client receives messages, and the callers that wait for them    |
| `wakeup`          | a selector that other threads can wake                                                    |
| `disconnects`     | a thread that notices when a server ends a connection                                     |
| `session_claims`  | claims that are held by one connection each, in session mode                              |
| `lifecycle`       | the open resources of a store, until it is closed or its process forks                    |
| `options`, `tls`  | the options and hosts of a URL; PEM files                                                 |
| `atomic_queue`, `atomic_cells` | the operations of memory and sqlite, in one atomic step each                 |
"""
