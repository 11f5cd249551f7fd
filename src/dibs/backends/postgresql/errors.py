"""What a server's refusal means, by its SQLSTATE: make the tables, ask again, or give up. None of them is ever a grant.

| the server says                                                  | and we                                         |
|------------------------------------------------------------------|------------------------------------------------|
| no such routine, table or schema                                 | make them, once, and ask again                 |
| the transaction is not READ COMMITTED (DB001, our own)           | say so with each verb from now on              |
| this is another store than before (DB003, our own)               | lose all that was held, and begin anew         |
| the tables have another layout (DB004, our own)                  | raise Mismatch: nothing was written            |
| a prepared statement is not there                                | prepare none any more: a pooler is in between  |
| deadlock, serialization, the name's lock was not free in time    | ask again, until the deadline                  |
| the queue of notifications is full                               | the same: the routine then sends none          |
| no room, no memory, too many connections, starting, read-only    | ask again until the deadline, somewhere else   |
| anything else: no privilege, a damaged record ...                | raise it: asking again would help nobody       |

What ended with its connection (FATAL) has an unknown outcome: that is no refusal, but StoreUnavailable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dibs.backends.common import atomic_queue, executor
from dibs.core.queue import Replaced
from dibs.core.rule import Claim
from dibs.errors import DibsError, Mismatch, StoreError, StoreUnavailable
from dibs.info import printable

MISSING = frozenset({"42883", "42P01", "3F000"})
NOT_COMMITTED_READS = "DB001"
REPLACED = "DB003"
OTHER_LAYOUT = "DB004"
_LEASED = b"lease"
UNPREPARED = frozenset({"26000", "42P05"})
_CROSSED = frozenset({"40001", "40P01", "54000", "55P03"})
_LATER = ("53", "57", "58", "25006")
_ELSEWHERE = frozenset({"25006", "57P01", "57P02", "57P03"})
_NO_RIGHT = "42501"
_DAMAGED = ("22", "23")
_LONGEST = 200
_UNKNOWN_HOST = "could not translate host name"
_LIBPQ_PLACE = re.compile(r'^connection to server (?:at "[^"]*"(?: \([^)]*\))?, port \d+|on socket "[^"]*") failed: ')
_STEPS = {
    "25006": "give the primary, or several hosts: postgresql://h1,h2/db uses the one that accepts writes",
    "53100": "make room on the server's disk",
    "53200": "give the server more memory",
    "53300": "raise max_connections, or use a pooler",
    "54000": "find the listening session that stays in a transaction: pg_stat_activity",
    "55P03": "find the session that holds the lock of the name: pg_locks",
    "57014": "check statement_timeout of this role, or who cancelled the statement",
    "57P03": "wait until it has started",
    _NO_RIGHT: "give this role the rights that `dibs doctor --ddl` prints",
    "3D000": "create the database, or check its name in the URL",
}
_REFUSED_LOGINS = (
    "password authentication failed", "no password supplied", "no pg_hba.conf entry", "pg_hba.conf rejects",
    "authentication failed", "does not exist", "is not permitted to log in", "permission denied for database",
    "certificate", "sslmode", "channel binding",
)  # fmt: skip


class Refusal(executor.Refusal):
    """An error that the server answered with: what was asked is not done."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = printable(text.strip()[:_LONGEST])

    def is_crossed(self) -> bool:
        """Another transaction was in the way, or the server needs a while: asking again may help."""
        return self.code in _CROSSED or self.code.startswith(_LATER)

    def is_elsewhere(self) -> bool:
        """Another server may be the one to ask."""
        return self.code in _ELSEWHERE


def final(refusal: Refusal) -> DibsError:
    """For a caller that gives up: what was refused, and what to do about it."""
    if refusal.code == OTHER_LAYOUT:
        return Mismatch(
            f"{refusal.text.removeprefix('dibs: ')}, and this version of dibs has another one",
            step="use one version of dibs, or another schema; to change over, stop all clients and drop the schema",
        )
    step = _STEPS.get(refusal.code, "check the server's log")
    if refusal.is_crossed():
        return StoreUnavailable(f"the server refused: {refusal.text} ({refusal.code})", step=step)
    if refusal.code.startswith(_DAMAGED):
        what = "the record is damaged, or dibs did not write it"
        return StoreError(
            f"{what}: {refusal.text} ({refusal.code})", step="find the program that writes there, and stop it"
        )
    return StoreError(f"the server refused: {refusal.text} ({refusal.code})", step=step)


def not_connected(where: str, said: str) -> StoreError:
    """libpq tells no SQLSTATE of a connection that was not made. Only what surely stays so is final."""
    first = _LIBPQ_PLACE.sub("", said.strip().partition("\n")[0])  # the place is named already, and then come hints
    text = printable(" ".join(first.split())[:_LONGEST])
    if any(words in said for words in _REFUSED_LOGINS):
        return StoreError(f"{where} refuses the login: {text}", step="check user, password, database and TLS")
    step = "check the host name" if _UNKNOWN_HOST in said else "check that the server runs there"
    return StoreUnavailable(f"no connection to {where}: {text}", step=step)


def strange() -> StoreError:
    """For an answer of another shape than we asked for."""
    return StoreError("the answer is not one of a dibs routine", step="check the dibs routines in the database")


def replaced() -> Replaced:
    return Replaced(
        "the tables were replaced or restored: all locks are lost", step="find the program that did that, and stop it"
    )


def may_be_early(words: Sequence[bytes]) -> bool:
    """Refused because of the row of the key: the session that has just taken the key may not have written it yet."""
    return words[1] in (b"m", b"x") and words[-1] != _LEASED


def not_taken(claim: Claim, words: Sequence[bytes]) -> DibsError:
    if words[1] == b"x":
        other = printable(b" ".join(words[2:]).decode(errors="replace"))
        return StoreError(
            f'busy under another name with the same 64-bit key: "{other}"', step="give one of them another name"
        )
    if words[1] != b"m" or len(words) < 4 or not words[2].isdigit():
        return strange()
    if words[3:] == [_LEASED]:
        return leased()
    return atomic_queue.mismatch(b" ".join(words[3:]).decode(errors="replace"), int(words[2]), claim)


def leased() -> Mismatch:
    return Mismatch(
        'held or asked for by a lease (mode="lease"), not by a connection or a transaction',
        step="use one mode for one name, or wait until its queue is empty",
    )
