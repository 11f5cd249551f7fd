"""The shared parts of the network stores: connections, requests, messages, options, and the lifecycle of a store.

| module            | what it has                                                                               |
|-------------------|-------------------------------------------------------------------------------------------|
| `connections`     | the pool of the sync API, and connecting in the background                                |
| `round_trip`      | the measured round trip to a server, and the time limits that follow from it              |
| `aio_connections` | the same for an event loop                                                                |
| `executor`        | ask once, ask until answered; unsent, unknown, refused                                    |
| `subscriber`      | the one connection on which a client hears messages, and the callers that wait for them   |
| `wakeup`          | what a reader of messages sleeps on                                                       |
| `disconnects`     | the thread that learns from the kernel when a server ends a connection                    |
| `session_claims`  | claims that live by a connection of their own, in session mode                            |
| `aio_wait`        | waiting in an event loop for a socket that the loop does not own                          |
| `lifecycle`       | what a store keeps open to its servers, until it is closed or its process is forked       |
| `options`, `tls`  | the options and hosts of a URL; PEM files                                                 |
"""
