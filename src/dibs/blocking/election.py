"""Elections in the sync API."""

from __future__ import annotations

from collections.abc import Iterator

from dibs.bases import Named
from dibs.blocking.entry import ask
from dibs.blocking.locks import Lock
from dibs.core.kinds.election import Election as CoreElection
from dibs.info import Participant


class Election(Named):
    """An election: see `Client.election`. Its holder leads; anyone can see who that is.

    Example:
        >>> import dibs
        >>> election = dibs.connect("memory://example", owner="ana").election("scheduler")
        >>> with election.lead() as hold:
        ...     election.leader().owner
        'ana'
        >>> next(election.watch()) is None
        True
    """

    __slots__ = ("_core",)
    _core: CoreElection

    def __init__(self, core: CoreElection) -> None:
        self._core = core
        self.lead()

    def lead(self) -> Lock:
        """A lock whose holder leads: `with election.lead() as hold:` waits to be elected."""
        return Lock(self._core.lead())

    def leader(self) -> Participant | None:
        """The present leader, or None. Asks the store.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
            Mismatch: The name is in use as another kind of lock.
        """
        return ask(self._core.leader())

    def watch(self) -> Iterator[Participant | None]:
        """Iterate over the leaders: `for leader in election.watch():`.

        The first is the present leader, or None. Then comes each change, without end.
        Where several changes come at once, only the newest is given.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
            Closed: The client was closed.
        """
        leader, seen = ask(self._core.change(None))
        while True:
            yield leader
            leader, seen = ask(self._core.change(seen))
