"""The meaning of a server's refusal, by its SQLSTATE. A refusal is never a grant.

| the server reports                                               | dibs                                           |
|------------------------------------------------------------------|------------------------------------------------|
| no such routine, table or schema                                 | creates them once, and asks again              |
| the transaction is not READ COMMITTED (DB001, our own)           | begins a transaction with each request         |
| this is another store than before (DB003, our own)               | reports all holds as lost, and starts afresh   |
| the tables have another layout (DB004, our own)                  | raises Mismatch: nothing was written           |
| a prepared statement is missing                                  | prepares none any more: there is a pooler      |
| deadlock, serialization failure, lock timeout                    | asks again, until the deadline                 |
| the queue of notifications is full                               | asks again: the routine then sends none        |
| no disk space, memory or connections; starting; read-only        | asks again until the deadline, somewhere else  |
| anything else: no privilege, a damaged record                    | raises it: asking again would not help         |

A connection that ends with FATAL leaves the outcome unknown: that is StoreUnavailable, not a refusal.
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
    """The server replied with an error, so the request was not done."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = printable(text.strip()[:_LONGEST])

    def is_crossed(self) -> bool:
        """Whether asking again may help: another transaction interfered, or the server needs time."""
        return self.code in _CROSSED or self.code.startswith(_LATER)

    def is_elsewhere(self) -> bool:
        """Whether another server may accept the request."""
        return self.code in _ELSEWHERE


def final(refusal: Refusal) -> DibsError:
    """The error for a caller that gives up."""
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
    """libpq gives no SQLSTATE for a failed connection, only a text. Only a refused login is final."""
    first = _LIBPQ_PLACE.sub("", said.strip().partition("\n")[0])  # the caller names the place; later lines are hints
    text = printable(" ".join(first.split())[:_LONGEST])
    if any(words in said for words in _REFUSED_LOGINS):
        return StoreError(f"{where} refuses the login: {text}", step="check user, password, database and TLS")
    step = "check the host name" if _UNKNOWN_HOST in said else "check that the server runs there"
    return StoreUnavailable(f"no connection to {where}: {text}", step=step)


def broken(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"the connection broke: {printable(' '.join(str(error).split())[:_LONGEST])}")


def strange() -> StoreError:
    """For a reply of an unexpected form."""
    return StoreError("the answer is not one of a dibs routine", step="check the dibs routines in the database")


def replaced() -> Replaced:
    return Replaced(
        "the tables were replaced or restored: all locks are lost", step="find the program that did that, and stop it"
    )


def may_be_early(words: Sequence[bytes]) -> bool:
    """Refused because of the key's row: the session that has just taken the key may not have written the row yet."""
    return words[1] in (b"m", b"x") and words[-1] != _LEASED


def not_taken(claim: Claim, words: Sequence[bytes]) -> DibsError:
    """For a refusal by `take` of session.sql."""
    if words[1] == b"x":
        other = printable(b" ".join(words[2:]).decode(errors="replace"))
        return StoreError(
            f'busy under another name with the same 64-bit key: "{other}"', step="give one of them another name"
        )
    return mismatch(claim, words[2:]) if words[1] == b"m" else strange()


def mismatch(claim: Claim, words: Sequence[bytes]) -> Mismatch | StoreError:
    """For a name that is in use with the capacity and kind in `words`."""
    if len(words) < 2 or not words[0].isdigit():
        return strange()
    kind = b" ".join(words[1:])
    if kind == _LEASED:
        return leased()
    if kind == b"session":
        return Mismatch(
            'held by a connection (mode="session"), or inside a transaction (within), not by a lease',
            step="use one mode for one name, or wait until it is free",
        )
    return atomic_queue.mismatch(kind.decode(errors="replace"), int(words[0]), claim)


def leased() -> Mismatch:
    return Mismatch(
        'held or asked for by a lease (mode="lease"), not by a connection or a transaction',
        step="use one mode for one name, or wait until its queue is empty",
    )
