"""The locks and primitives that a client makes, without I/O.

`lock`: lock, rlock, rwlock, semaphore, stripes. `primitives`: latch, cell, fence. `hold_stack`: the holds that were
taken through one lock object.
"""
