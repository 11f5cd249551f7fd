"""One connection that at most one claim lives by. Nothing here waits: who has it asks, and reads what has come.

At most one statement is on its way at a time. Whatever is raised here, the session is good for nothing any more: who
has it closes it (`discard` of sessions.py), and with it goes what it holds in the server.
"""

from __future__ import annotations

import ssl

from dibs.backends.common.wakeup import Readiness
from dibs.backends.mysql.calls import Request
from dibs.backends.mysql.connection import MysqlConnection, broken
from dibs.backends.mysql.executor import words
from dibs.backends.mysql.wire import Answer
from dibs.errors import StoreUnavailable

_CHUNK = 65_536
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Session:
    __slots__ = (
        "__weakref__",
        "_answer",
        "_readiness",
        "claim_id",
        "cut",
        "fd",
        "link",
        "number",
        "sent_at",
        "sock",
        "used_at",
    )

    def __init__(self, link: MysqlConnection, number: int) -> None:
        self.link = link
        self.number = number
        """The server's, of this session."""
        self.sock = link.sock
        self.fd = self.sock.fileno()
        self.sock.settimeout(0)
        self.claim_id: bytes | None = None
        """Whose it is."""
        self.cut = False
        """The server ended it."""
        self.sent_at = self.used_at = link.used_at
        self._answer: Answer | None = None
        self._readiness = Readiness(self.fd)

    @property
    def asked(self) -> bool:
        """Something is still to be answered."""
        return self._answer is not None

    def ask(self, request: Request, now: float) -> None:
        self._answer, self.sent_at = Answer(), now
        try:
            self.sock.sendall(request.packed(0.0))
        except OSError as error:
            raise broken(error) from None

    def wait(self, patience: float) -> bool:
        """Whether something is there to be read; the one that blocks, for threads."""
        return self._readiness.wait(patience)

    def read(self) -> bool:
        """Take in what has come. True: the answer is whole."""
        answer = self._answer
        if answer is None:
            raise StoreUnavailable("the server said what nobody asked for")
        try:
            while True:
                received = self.sock.recv(_CHUNK)
                if answer.feed(received):
                    return True
                if len(received) < _CHUNK and not isinstance(self.sock, ssl.SSLSocket):
                    return False
        except _NOT_NOW:
            return False
        except StoreUnavailable:
            raise
        except OSError as error:
            raise broken(error) from None

    def begun(self) -> list[bytes] | None:
        """The words that an answer begins with which is not whole yet."""
        sets = None if self._answer is None else self._answer.so_far()
        return words(sets[:1], 2) if sets else None

    def told(self) -> list[bytes] | None:
        """The words that end the answer to a wait. Its end itself comes a little later, in a message of its own: who
        waits need not wait for that, too."""
        sets = None if self._answer is None else self._answer.so_far()
        return words(sets, 2) if sets and len(sets) > 1 else None

    def answer(self) -> Answer:
        """A whole one; a refusal is raised. From now on it can be asked again."""
        answer, self._answer = self._answer, None
        if answer is None:
            raise StoreUnavailable("nothing was asked")
        answer.result()
        return answer

    def result(self) -> list[bytes]:
        """The words of a whole answer."""
        return words(self.answer().result(), 2)
