"""dibs: distributed locking for Python. This is the sync API; `dibs.aio` is the async API.

>>> import dibs
>>> with dibs.connect("memory://") as client, client.lock("invoice:42", timeout=5) as hold:
...     hold.mode
'exclusive'
"""

from dibs._shared import observe
from dibs.blocking import (
    Cell,
    Client,
    Election,
    Fence,
    Hold,
    HoldEvent,
    Latch,
    Lock,
    Multi,
    MultiHold,
    RLock,
    RWLock,
    Semaphore,
    Striped,
    Within,
    WithinHold,
    WithinLock,
    connect,
    multi,
)
from dibs.errors import (
    AcquireTimeout,
    BadName,
    Busy,
    Closed,
    Conflict,
    Deadlock,
    DibsError,
    LockLost,
    Mismatch,
    MissingDriver,
    NotHeld,
    StaleToken,
    StoreError,
    StoreUnavailable,
    Unsupported,
)
from dibs.events import Event, Observer
from dibs.info import Finding, LockInfo, Participant

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout", "BadName", "Busy", "Cell", "Client", "Closed", "Conflict", "Deadlock", "DibsError", "Election",
    "Event", "Fence", "Finding", "Hold", "HoldEvent", "Latch", "Lock", "LockInfo", "LockLost", "Mismatch",
    "MissingDriver", "Multi", "MultiHold", "NotHeld", "Observer", "Participant", "RLock", "RWLock", "Semaphore",
    "StaleToken", "StoreError", "StoreUnavailable", "Striped", "Unsupported", "Within", "WithinHold", "WithinLock",
    "connect", "multi", "observe",
]  # fmt: skip
