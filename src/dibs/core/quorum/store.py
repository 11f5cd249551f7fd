"""A quorum as a store: the members, several independent stores. core/quorum/grantor.py takes locks by their majority.

A member is any store that counts leases and can vote (`_NEEDED`). A store that is given twice is an error: here by its
name, and at first use by the id that is kept in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NoReturn, cast

from dibs.core.cells import Cells
from dibs.core.deadline import seconds
from dibs.core.queue import ATOMIC_TRY, LEASES, QUORUM, RECORDS, VOTES, ClientIdentity, Member, Queue, Store, Voter
from dibs.core.runtime import Runtime
from dibs.errors import Unsupported

_NEEDED = frozenset({LEASES, ATOMIC_TRY, VOTES})


class QuorumStore:
    """One client's view of all members. `open` is not called: quorum/grantor.py uses `open_members`."""

    backend: ClassVar[str] = "quorum"
    capabilities: ClassVar[frozenset[str]] = frozenset({LEASES, QUORUM, RECORDS})

    def __init__(self, members: Sequence[Store], guard: object = None, shown: str | None = None) -> None:
        names = [member.shown for member in members]
        self.shown = shown or f"quorum of {', '.join(names)}"
        if not members:
            raise ValueError("a quorum needs members: give the URLs of three or five independent stores")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{self.shown}: {twice[0]} is given twice; give every independent store once")
        for member in members:
            if not member.capabilities >= _NEEDED:
                raise Unsupported(
                    f"{member.shown} cannot be a member of a quorum", store=self.shown,
                    step="use redis:// stores, each on its own server",
                )  # fmt: skip
        self.guard = None if guard is None else _seconds(guard)
        """Seconds for which a member that may have lost votes has none; None: the client's lease."""
        self.members = list(members)
        self._known: tuple[ClientIdentity, list[ClientIdentity]] | None = None

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        self._no_queue()

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        self._no_queue()

    def open_members(self, runtime: Runtime, me: ClientIdentity) -> list[Member]:
        """Each member gets an inbox of its own, because an inbox listens to one source."""
        if self._known is None or self._known[0] is not me:
            self._known = me, [ClientIdentity(me.id, runtime.inbox(), me.lease, me.news) for _ in self.members]
        return [
            Member(member.shown, cast("Voter", member.open(runtime.separate(), own)))  # VOTES is in _NEEDED
            for member, own in zip(self.members, self._known[1], strict=True)
        ]

    def close(self) -> None:
        for own in self._known[1] if self._known is not None else ():
            own.inbox.unlisten()
        for member in self.members:
            member.close()

    def before_fork(self) -> None:
        for member in self.members:
            member.before_fork()

    def after_fork(self, child: bool) -> None:
        for member in self.members:
            member.after_fork(child)

    def _no_queue(self) -> NoReturn:
        raise Unsupported("a quorum has no queue of its own", store=self.shown, step="use one of its members")


def _seconds(guard: object) -> float:
    if isinstance(guard, str):
        try:
            guard = float(guard)
        except ValueError:
            raise ValueError("guard= must be a number of seconds") from None
    return seconds(guard, "guard")
