"""The scripts in lua/, one for each verb, and the requests that run them.

The scripts of a queue share head.lua (the layout) and queue.lua (the walk, and the only place that writes). A script
with a short path marks where these are inserted. Scripts that give tickets also share floor.lua.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from importlib.resources import files
from typing import Protocol

import hiredis

from dibs.core.queue import QUEUE, Place
from dibs.core.rule import Claim

_pack_texts: Callable[[tuple[bytes | str, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]
"""The type stub of hiredis is wrong."""
MICROSECONDS = 1_000_000
DIGITS = 16
"""Digits of a number in a record, and of a time in a reply."""
Argument = bytes | str | int


def pack(words: tuple[Argument, ...]) -> bytes:
    """Pack a command. Numbers become text here: when hiredis 3.5 converts them, a signal handler that raises (Ctrl-C)
    kills the process."""
    return _pack_texts(tuple([str(word) if type(word) is int else word for word in words]))  # type: ignore[misc]


class Script:
    """`short`: the type of its short replies, where it has any beside lists."""

    __slots__ = ("name", "sha", "short", "text")

    def __init__(self, name: str, text: str, short: type = list) -> None:
        self.name = name
        self.text = text
        self.short = short
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


class Request(Protocol):
    """A command to a server, which has one reply."""

    def packed(self, offset: float) -> bytes:
        """The bytes for a server whose clock is ahead of ours by `offset` seconds."""


class Command:
    """A command of Redis itself."""

    __slots__ = ("_packed",)

    def __init__(self, *words: bytes | str | int) -> None:
        self._packed = pack(words)

    def packed(self, offset: float) -> bytes:
        return self._packed


class Wait(Command):
    """Wait until enough replicas have the earlier writes of this connection. Several callers may share one."""

    __slots__ = ()

    def __init__(self, replicas: int, seconds: float) -> None:
        super().__init__("WAIT", replicas, max(int(seconds * 1000), 1))


class ScriptCall:
    """A script with its key and arguments. `by`, an instant of the local clock, is appended as a time of the server's
    clock. `more`: further keys on the same server."""

    __slots__ = ("_words", "args", "by", "key", "more", "script")

    def __init__(
        self, script: Script, key: bytes, args: tuple[Argument, ...], by: float | None = None,
        more: tuple[bytes, ...] = (),
    ) -> None:  # fmt: skip
        self.script = script
        self._words = ("EVALSHA", script.sha)
        self.key = key
        self.args = args
        self.by = by
        self.more = more

    def packed(self, offset: float) -> bytes:
        by = () if self.by is None else (instant(self.by + offset),)
        return pack((*self._words, 1 + len(self.more), self.key, *self.more, *self.args, *by))

    def whole(self) -> ScriptCall:
        """A copy that sends the text of the script, for a server that has not loaded it."""
        call = ScriptCall(self.script, self.key, self.args, self.by, self.more)
        call._words = ("EVAL", self.script.text)
        return call

    def is_answered_by(self, reply: object) -> bool:
        return type(reply) is list or type(reply) is self.script.short


def instant(seconds: float) -> bytes:
    """Format a time of the server's clock for a script, rounded down.

    >>> instant(1794704438.8615357)
    b'1794704438861535'
    """
    return b"%016d" % max(int(seconds * MICROSECONDS), 0)


def description(claim: Claim, channel: bytes) -> bytes:
    """The end of a claim's record, from the field `lease` on: see lua/head.lua."""
    lease, waiting = int(claim.lease * MICROSECONDS), int(claim.waiting * MICROSECONDS)
    sizes = f"{lease:016d}{waiting:016d}{claim.weight:016d}{claim.capacity:016d}{claim.kind:<16}{len(channel):04d}"
    return sizes.encode() + channel + claim.description.encode()


class Requests:
    """The packed requests of one lock object, without the id and time of a claim: see `Prepared` in core/rule.py."""

    __slots__ = ("_leave", "_queue", "_tries", "is_large")
    farewell = None
    """Nothing is to be sent after a leave."""

    def __init__(self, claim: Claim, channel: bytes, key: bytes, floor: tuple[bytes, ...]) -> None:
        about = description(claim, channel)
        keys: tuple[Argument, ...] = (1 + len(floor), key, *floor)
        self._queue, self._tries = (
            pack(("EVALSHA", JOIN.sha, *keys, about, place, _ID, _TIME))[: -len(_END)] for place in ("l", "n")
        )
        """The start of a join that waits in the queue, and of one that does not wait: up to the id."""
        self.is_large = len(self._queue) > LARGE
        """One `send` may not take the whole request."""
        self._leave = pack(("EVALSHA", LEAVE.sha, 1, key, _ID))[: -len(_ID) - 2]

    def join(self, claim: Claim, place: Place, offset: float) -> bytes:
        start = self._queue if place is QUEUE else self._tries
        return b"%b%b%b%016d\r\n" % (start, claim.id, BETWEEN, int((claim.by + offset) * MICROSECONDS))

    def leave(self, claim: Claim) -> bytes:
        return b"%b%b\r\n" % (self._leave, claim.id)


LARGE = 8192
_ID, _TIME = b"i" * 16, b"t" * DIGITS
BETWEEN = b"\r\n$%d\r\n" % DIGITS
"""The bytes between the id of a claim and `by` in a packed join."""
_END = _ID + BETWEEN + _TIME + b"\r\n"


def _read(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


_PARTS = {f"-- ({name}.lua)\n": _read(name) for name in ("head", "clock", "queue", "floor")}
_USUAL = "-- (head.lua)\nlocal head = call('HGET', key, 'h')\n-- (clock.lua)\n-- (queue.lua)\n"
"""The start of a script without a short path."""


def _verb(name: str, short: type = list) -> Script:
    text = _read(name)
    text = text if "-- (head.lua)\n" in text else _USUAL + text
    for marker, part in _PARTS.items():
        text = text.replace(marker, part)
    return Script(name, text, short)


JOIN, RENEW, LEAVE, AMEND = _verb("join", bytes), _verb("renew"), _verb("leave", int), _verb("amend")
EVICT, REVOKE, LOOK, FOREMOST = _verb("evict"), _verb("revoke"), _verb("look"), _verb("foremost")
STAMP = _verb("stamp")
PUT, ADMIT, LEASES = Script("put", _read("put")), Script("admit", _read("admit")), Script("leases", _read("leases"))
