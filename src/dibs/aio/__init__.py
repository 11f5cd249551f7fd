"""The asyncio face: the same names as `dibs`, awaited; a test holds their signatures equal.

Renewal does not depend on the loop: the watchdog is a thread.

>>> import asyncio, dibs.aio
>>> async def main():
...     async with dibs.aio.connect("memory://") as client, client.lock("invoice:42", timeout=5) as hold:
...         print(hold.mode)
>>> asyncio.run(main())
exclusive
"""

from dibs.aio.client import Client, LockOptions, connect
from dibs.aio.locks import (
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
from dibs.aio.ownerless import Cell, Fence, Latch
from dibs.aio.within import Within, WithinHold, WithinLock
from dibs.info import Finding, LockInfo, Participant

__all__ = [
    "Cell", "Client", "Election", "Fence", "Finding", "Hold", "HoldEvent", "Latch", "Lock", "LockInfo", "LockOptions",
    "Multi", "MultiHold", "Participant", "RLock", "RWLock", "Semaphore", "Striped", "Within", "WithinHold",
    "WithinLock", "connect", "multi",
]  # fmt: skip
