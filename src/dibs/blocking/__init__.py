"""The blocking face; a test holds `dibs.aio` equal to it."""

from dibs.blocking.client import Client, LockOptions, connect
from dibs.blocking.locks import (
    Election,
    Hold,
    HoldEvent,
    Lock,
    Multi,
    MultiHold,
    RLock,
    RWLock,
    Semaphore,
    Striped,
    multi,
)
from dibs.blocking.ownerless import Cell, Fence, Latch
from dibs.blocking.within import Within, WithinHold, WithinLock
from dibs.info import LockInfo, Participant

__all__ = [
    "Cell", "Client", "Election", "Fence", "Hold", "HoldEvent", "Latch", "Lock", "LockInfo", "LockOptions", "Multi",
    "MultiHold", "Participant", "RLock", "RWLock", "Semaphore", "Striped", "Within", "WithinHold",
    "WithinLock", "connect", "multi",
]  # fmt: skip
