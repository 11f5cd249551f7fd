"""The layout of Redisson on Redis: a Python program and a Java program share locks, semaphores and latches.

| lock in Python                      | object in Java               | scripts in lua/           |
|-------------------------------------|------------------------------|---------------------------|
| `lock`, `rlock`                     | RLock, RSpinLock             | mutex_*                   |
| the same with `fenced=True`         | RFencedLock                  | mutex_*, with a token key |
| the same with `fair=True`           | RFairLock                    | fair_*, mutex_renew       |
| `rwlock`                            | RReadWriteLock               | rw_*                      |
| `semaphore`                         | RSemaphore                   | semaphore_*               |
| `semaphore(renew=False)`            | RPermitExpirableSemaphore    | permits_*                 |
| `latch`                             | RCountDownLatch              | latch_*                   |

forms.py: which keys, scripts and channels each kind has. queue.py: the verbs. wakeups.py: who hears a message.
The road from a lock to the wire is that of the other layout (see the package above), with these scripts.

Three things differ from Redisson. The time is that of the server, not of each client. A join has a time after which it
has no effect. A request that may have to be repeated is remembered by a key like Redisson's unlock latch, which is
deleted once the reply has come.
"""
