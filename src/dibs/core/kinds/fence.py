"""A fence: the checking half of fencing, for the resource to call in the same atomic step as the change.

It remembers the highest exclusive token that it admitted, for good. A token below it is stale: somebody else has held
the lock since. Readers' tokens (`shared`) are compared with that one only, as readers do not exclude each other. The
permits of a semaphore are no order in which the resource could be written: their tokens are not for a fence.
"""

from __future__ import annotations

from dibs.core.cells import FENCE, Admits
from dibs.core.client import Client
from dibs.core.kinds.slot import Slot
from dibs.errors import DibsError, StaleToken, public

_LARGEST_TOKEN = 2**63 - 1


class Fence:
    """`dibs.Fence` and its asyncio twin are faces of this."""

    def __init__(self, client: Client, name: object) -> None:
        self._slot = Slot(client, FENCE, name, "fences")
        self.name = self._slot.name

    async def admit(self, token: object, shared: object, within: Admits | None) -> None:
        if not isinstance(shared, bool):
            raise TypeError(f"shared must be True or False, not {shared!r}")
        number, is_shared = _checked(token), shared is True
        slot, end = self._slot, self._slot.patience()
        name, where = slot.spot.name, slot.client.shown
        if within is None:
            highest = await slot.ask(lambda cells: cells.admit(name, number, is_shared, end), end)
        else:
            where = "your own transaction"
            try:
                highest = await within.admit(name, number, is_shared, end)
            except DibsError as error:
                raise public(error.about(self.name, where)) from None
        if highest > number:
            raise StaleToken(
                f"token {number} is stale: {highest} was admitted before", name=self.name, store=where,
                step="do not write: a later holder has written since",
            )  # fmt: skip

    def describe(self) -> str:
        return self._slot.client.place(self.name)


def _checked(token: object) -> int:
    if isinstance(token, bool) or not isinstance(token, int):
        raise TypeError(f"token must be an int, as hold.token is, not {token!r}")
    if not 1 <= token <= _LARGEST_TOKEN:
        raise ValueError(f"token must be from 1 to {_LARGEST_TOKEN}, as hold.token is, not {token}")
    return token
