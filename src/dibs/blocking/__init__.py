"""The sync API. A test compares `dibs.aio` with it."""

from dibs.blocking.client import Client, connect
from dibs.blocking.election import Election
from dibs.blocking.locks import Hold, HoldEvent, Lock, RLock, RWLock, Semaphore
from dibs.blocking.primitives import Cell, Fence, Latch
from dibs.blocking.several import Multi, MultiHold, Striped, multi
from dibs.blocking.within import Within, WithinHold, WithinLock
from dibs.info import LockInfo, Participant

__all__ = [
    "Cell", "Client", "Election", "Fence", "Hold", "HoldEvent", "Latch", "Lock", "LockInfo", "Multi", "MultiHold",
    "Participant", "RLock", "RWLock", "Semaphore", "Striped", "Within", "WithinHold", "WithinLock", "connect", "multi",
]  # fmt: skip
