"""The claims of one client, each with the session it lives by, and what the server says to those that wait.

A waiting session is in the middle of a statement (take.sql): its answer is the grant. Whoever reads for all waiters (a
source of messages, core/runtime.py) reads it; so does a renewal, whichever comes first. The session lies on the `desk`
of its stand: who takes it from there has it alone, and puts it back; one that was dropped on the way is closed by that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dibs.backends.common.wakeup import Wakeup
from dibs.backends.mysql.answers import strange
from dibs.backends.mysql.calls import Request
from dibs.backends.mysql.session.session import Session
from dibs.backends.mysql.session.sessions import Sessions
from dibs.backends.mysql.wire import Refusal
from dibs.core.deadline import FOREVER
from dibs.core.line import LOOK, YOURS
from dibs.core.rule import Claim, Standing
from dibs.errors import StoreError

Message = tuple[bytes, bytes]


class Asks(NamedTuple):
    """What is asked for a claim, the same for every one of its kind."""

    key: str
    """The name of its user lock."""
    take: Request
    give: Request


class Stand:
    __slots__ = ("asks", "claim", "desk", "gone", "holds", "left", "revoked", "seen_at", "ticket")

    def __init__(self, claim: Claim, asks: Asks) -> None:
        self.claim = claim
        self.asks = asks
        self.desk: list[Session] = []
        self.ticket = 0
        self.seen_at = 0.0
        """An instant at which its session surely had not been silent for any time yet."""
        self.holds = self.gone = self.revoked = False
        self.left = False
        """Nobody wants it: whoever has its session closes it."""

    def standing(self, lease: float, now: float) -> Standing | None:
        left = self.seen_at + lease - now
        if self.gone or left <= 0:
            return None
        if not self.holds:
            left = min(left, self.claim.waiting)
        return Standing(self.ticket, self.holds, left, FOREVER, self.revoked)

    def hear(self, said: list[bytes]) -> None:
        """What became of a wait. Whatever else than a grant it was, who asks anew is told."""
        if said[1] == b"held":
            self.ticket = self.claim.ticket = ticket_of(said)
            self.holds = True
        else:
            self.gone = True

    def put_back(self, session: Session, sessions: Sessions) -> None:
        self.desk.append(session)
        if self.left and self.desk:
            sessions.discard(self.desk.pop())


class Stands:
    """See core/runtime.py: a source."""

    def __init__(self, sessions: Sessions, now: Callable[[], float]) -> None:
        self._sessions = sessions
        self._now = now
        self._poked = Wakeup()
        self._all: dict[bytes, Stand] = {}
        self._waiting: dict[int, Stand] = {}
        """By the number of the socket."""
        self._buried: dict[bytes, float] = {}

    def find(self, id: bytes) -> Stand | None:
        return self._all.get(id)

    def begin(self, stand: Stand) -> None:
        self._all[stand.claim.id] = stand

    def finish(self, id: bytes) -> Stand | None:
        return self._all.pop(id, None)

    def bury(self, claim: Claim) -> None:
        """Its join may still come, from another thread: it is to do nothing."""
        now = self._now()
        for id, until in list(self._buried.items()):
            if until < now:
                self._buried.pop(id, None)
        self._buried[claim.id] = claim.by

    def is_buried(self, id: bytes) -> bool:
        return id in self._buried

    def attend(self, stand: Stand, session: Session) -> None:
        """It waits: from now on its answer is read here."""
        self._waiting[session.fd] = stand
        try:
            self._poked.attend(session.sock)
        except ValueError:  # this client was closed meanwhile, or nobody wants it any more
            self._waiting.pop(session.fd, None)
            stand.gone = True

    def ignore(self, session: Session) -> None:
        if self._waiting.pop(session.fd, None) is not None:
            self._poked.ignore(session.sock)

    def catch_up(self, stand: Stand) -> Message | None:
        """Read what a waiting one was told, if nobody else does; what its claim is to hear of it."""
        if stand.holds or stand.gone:
            return None
        try:
            session = stand.desk.pop()
        except IndexError:
            return None
        now, told = self._now(), None
        try:
            if session.read():
                told = session.result()
            elif (told := session.told()) is None:
                stand.seen_at = now
            if told is not None:
                self.ignore(session)
                stand.hear(told)
        except (StoreError, Refusal):
            stand.gone = True
        if stand.gone:
            self.ignore(session)
            self._sessions.discard(session)
            return stand.claim.id, LOOK.value
        stand.put_back(session, self._sessions)
        return None if told is None else (stand.claim.id, YOURS.value)

    # A source of messages.

    def fileno(self) -> int:
        return self._poked.fileno()

    def poke(self) -> None:
        self._poked.poke()

    def receive(self, patience: float) -> list[Message]:
        return self._heard(self._poked.sleep(patience))

    def read(self) -> list[Message]:
        return self._heard(self._poked.readable())

    def _heard(self, where: list[int]) -> list[Message]:
        self._poked.settle()
        found = []
        for number in where:
            stand = self._waiting.get(number)
            if stand is not None and (message := self.catch_up(stand)) is not None:
                found.append(message)
        return found

    def close(self) -> None:
        self._poked.close()


def ticket_of(said: list[bytes]) -> int:
    try:
        return int(said[2])
    except (ValueError, IndexError):
        raise strange() from None
