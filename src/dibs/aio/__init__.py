"""The async API: the same names as `dibs`, with the same parameters and `cancel_on_lost`.

Await every method that does I/O or waits.

Renewal does not depend on the event loop: the watchdog is a thread.

>>> import asyncio, dibs.aio
>>> async def main():
...     async with dibs.aio.connect("memory://") as client, client.lock("invoice:42", timeout=5) as hold:
...         print(hold.mode)
>>> asyncio.run(main())
exclusive
"""

from dibs.aio.client import Client, connect
from dibs.aio.election import Election
from dibs.aio.locks import Hold, HoldEvent, Lock, RLock, RWLock, Semaphore
from dibs.aio.primitives import Cell, Fence, Latch
from dibs.aio.several import Multi, MultiHold, Striped, multi
from dibs.aio.within import Within, WithinHold, WithinLock
from dibs.info import Finding, LockInfo, Participant

__all__ = [
    "Cell", "Client", "Election", "Fence", "Finding", "Hold", "HoldEvent", "Latch", "Lock", "LockInfo", "Multi",
    "MultiHold", "Participant", "RLock", "RWLock", "Semaphore", "Striped", "Within", "WithinHold", "WithinLock",
    "connect", "multi",
]  # fmt: skip
