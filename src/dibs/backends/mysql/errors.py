"""The meaning of the server's errors. No error is ever a grant.

| error of the server                                    | reaction                                                 |
|--------------------------------------------------------|----------------------------------------------------------|
| 1146, 1305, 4091: no such table, routine, sequence     | create them, and ask again                               |
| 1205, 1213, 1020: lock wait timeout, deadlock          | ask again until the deadline: nothing was done           |
| 1040, 1053, 1290, 1114 ...: full, ending, read-only    | ask again until the deadline                             |
| 1317, 1927, 1969 ...: the statement was ended          | as a broken connection: the outcome is unknown           |
| anything else: denied, no database, a damaged row ...  | raise it: another attempt would not help                 |

After each of them the connection is closed, and the server rolls back what the statement had begun.
"""

from __future__ import annotations

from dibs.backends.mysql.wire import Refusal
from dibs.core.queue import Replaced, Unsent
from dibs.errors import Mismatch, StoreError, StoreUnavailable
from dibs.info import printable

_LONGEST = 200
MISSING = frozenset({1146, 1305, 4091})
EXISTS = frozenset({1050, 1304})
LOGINS = frozenset({1044, 1045, 1698})
CONTENDED = frozenset({1020, 1205, 1213})
DENIED = frozenset({1044, 1045, 1095, 1142, 1143, 1227, 1370, 1410, 1419, 1698})
LATER = CONTENDED | {3, 1021, 1026, 1030, 1040, 1047, 1053, 1114, 1129, 1203, 1226, 1290, 1792, 1836, 3168, 3675}
ENDED = frozenset({1158, 1159, 1160, 1161, 1180, 1317, 1927, 1969, 3024, 4031})
_STEPS = {
    **dict.fromkeys((3, 1021, 1026, 1114), "make room on the disk of the server"),
    **dict.fromkeys((1290, 1792, 1836), "give the primary: this server is read-only"),
    1030: "check the server's log and its disk",
    1040: "raise max_connections, or let fewer clients connect",
    1047: "wait until this node has joined its cluster",
    1049: "create the database, or give another one in the URL",
    1053: "wait until the server is up again",
    1129: "find the cause of the failed connections, then run FLUSH HOSTS on the server",
    1203: "raise max_user_connections of this user",
    1205: "find the transaction that keeps these rows locked: SHOW ENGINE INNODB STATUS",
    1226: "raise the limits of this user",
    1644: "find the program that writes there, and stop it",
    1665: "set binlog_format to ROW or MIXED on the server",
}
_RIGHTS = "give this user the rights that `dibs doctor` prints, or create the tables of `dibs doctor --ddl`"


def final(refusal: Refusal) -> StoreError:
    """The error for the caller: what was refused, and the next step."""
    text = printable(refusal.text[:_LONGEST])
    if refusal.code in ENDED:
        return StoreUnavailable(f"the server ended the statement: {text}")
    if refusal.code in DENIED:
        return StoreError(f"the server refused: {text}", step=_RIGHTS)
    if refusal.code == 1644:  # raised by walk.sql
        return StoreError(f"the record is damaged, or dibs did not write it: {text}", step=_STEPS[1644])
    step = _STEPS.get(refusal.code, "check the server's log")
    kind = StoreUnavailable if refusal.code in LATER else StoreError
    return kind(f"the server refused: {text} ({refusal.code})", step=step)


def unsent(refusal: Refusal, place: str = "the server") -> StoreError:
    """The error for a refusal while connecting."""
    if refusal.code in LOGINS:
        text = printable(refusal.text[:_LONGEST])
        return StoreError(f"{place} refuses the login: {text}", step="check user, password and database")
    error = final(refusal)
    return Unsent(error.what, step=error.step) if isinstance(error, StoreUnavailable) else error


def strange() -> StoreError:
    """The error for a reply that no routine of ours gives."""
    return StoreError("the answer is not one of a dibs routine", step="check that this is the right server")


class Epoch:
    """The id of the store that a client talks to. Tables that were dropped and created anew have another one, and none
    of our claims. Each reply of a routine has the id (dibs_store). All queues of a client share this object.

    >>> epoch = Epoch()
    >>> epoch.check(b"one"), epoch.check(None), epoch.check(b"one")
    (None, None, None)
    >>> epoch.check(b"two")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dibs.core.queue.Replaced: the tables were created anew: all locks are lost. Next: ...
    >>> epoch.check(b"two")
    """

    def __init__(self) -> None:
        self._known: bytes | None = None

    def check(self, seen: bytes | None) -> None:
        """Raise once if the id has changed, and remember the new one. None: the row is missing."""
        known = self._known
        if seen is None or seen == known:
            return
        self._known = seen
        if known is not None:
            raise Replaced(
                "the tables were created anew: all locks are lost", step="find the program that did that, and stop it"
            )


MODES = {
    "lease": 'held or asked for by a lease (mode="lease"), not by a connection or a transaction',
    "session": 'held by a connection (mode="session"), not by a lease or a transaction',
    "within": "held inside a transaction (within), not by a lease or a connection",
}


def mode_mismatch(mode: str) -> Mismatch:
    return Mismatch(MODES[mode], step="use one mode for one name, or wait until its queue is empty")
