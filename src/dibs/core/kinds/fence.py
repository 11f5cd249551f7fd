"""A fence: the checking half of fencing. The resource calls it in the same atomic step as the change.

It records the highest exclusive token that it admitted, for ever. A lower token is stale: another client has held the
lock since. Tokens of readers (`shared`) are compared with the record but not recorded, because readers do not exclude
each other. Holders of permits run in parallel, so the tokens of a semaphore are not for a fence.
"""

from __future__ import annotations

from dibs.core.cells import FENCE, Admits
from dibs.core.client import Client
from dibs.core.kinds.versioned_slot import VersionedSlot
from dibs.errors import DibsError, StaleToken, public

_LARGEST_TOKEN = 2**63 - 1


class Fence:
    def __init__(self, client: Client, name: object) -> None:
        self._slot = VersionedSlot(client, FENCE, name, "fences")
        self.name = self._slot.name

    async def admit(self, token: object, shared: object, within: Admits | None) -> None:
        if not isinstance(shared, bool):
            raise TypeError(f"shared must be True or False, not {shared!r}")
        number, is_shared = _checked(token), shared is True
        slot, end = self._slot, self._slot.patience()
        name, where = slot.cell_key.name, slot.client.shown
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
