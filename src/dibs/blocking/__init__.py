"""The blocking face; a test holds `dibs.aio` equal to it."""

from dibs.blocking.client import Client, LockOptions, connect
from dibs.blocking.locks import Hold, HoldEvent, Lock, Multi, MultiHold, RLock, RWLock, Semaphore, Striped, multi
from dibs.info import LockInfo, Participant

__all__ = [
    "Client", "Hold", "HoldEvent", "Lock", "LockInfo", "LockOptions", "Multi", "MultiHold", "Participant", "RLock",
    "RWLock", "Semaphore", "Striped", "connect", "multi",
]  # fmt: skip
