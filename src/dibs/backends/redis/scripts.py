"""The scripts: one for each verb, in lua/. Those about a queue share head.lua (the layout) and queue.lua (the walk, and
the one place that writes). A verb with a short path of its own says where they are to come. Verbs that give tickets
have floor.lua, too."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from importlib.resources import files
from typing import Protocol

import hiredis

from dibs.core.rule import Claim

_pack_texts: Callable[[tuple[bytes | str, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]
"""Its stub says: of one word."""
MICROSECONDS = 1_000_000
DIGITS = 16
"""Of a number in a record, and of a time in a reply."""
Argument = bytes | str | int


def _pack(words: tuple[Argument, ...]) -> bytes:
    """Numbers as text: hiredis makes that of them, too, but a signal whose handler raises, Ctrl-C, kills the process if
    it comes just then (3.5 does not expect that to fail)."""
    return _pack_texts(tuple([str(word) if type(word) is int else word for word in words]))  # type: ignore[misc]


class Script:
    """`short`: the type of its reply where that is not a list."""

    __slots__ = ("name", "sha", "short", "text")

    def __init__(self, name: str, text: str, short: type = list) -> None:
        self.name = name
        self.text = text
        self.short = short
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()  # as the server calls it

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


class Request(Protocol):
    """What is sent to a server, and answered once."""

    def packed(self, offset: float) -> bytes:
        """As it goes out to a server whose clock is so much ahead of ours."""


class Command:
    """One of Redis's own."""

    __slots__ = ("_packed",)

    def __init__(self, *words: bytes | str | int) -> None:
        self._packed = _pack(words)

    def packed(self, offset: float) -> bytes:
        return self._packed


class Wait:
    """For so many replicas to have what was written on this connection before; several who ask may share one."""

    __slots__ = ("_packed",)

    def __init__(self, replicas: int, seconds: float) -> None:
        self._packed = _pack(("WAIT", replicas, max(int(seconds * 1000), 1)))

    def packed(self, offset: float) -> bytes:
        return self._packed


class ScriptCall:
    """One script with its key and arguments. `by`, an instant of the local clock, is sent behind them as the server's
    time (see `Connection`). `floor`: a second key, at the same server."""

    __slots__ = ("_words", "args", "by", "floor", "key", "script")

    def __init__(
        self, script: Script, key: bytes, args: tuple[Argument, ...], by: float | None = None,
        floor: bytes | None = None,
    ) -> None:  # fmt: skip
        self.script = script
        self._words = ("EVALSHA", script.sha)
        self.key = key
        self.args = args
        self.by = by
        self.floor = floor

    def packed(self, offset: float) -> bytes:
        by = () if self.by is None else (instant(self.by + offset),)
        if self.floor is None:
            return _pack((*self._words, 1, self.key, *self.args, *by))
        return _pack((*self._words, 2, self.key, self.floor, *self.args, *by))

    def whole(self) -> ScriptCall:
        """The same with the text of its script, for a server that does not know it."""
        call = ScriptCall(self.script, self.key, self.args, self.by, self.floor)
        call._words = ("EVAL", self.script.text)
        return call


def instant(seconds: float) -> bytes:
    """A time of the server's clock as the scripts write it, rounded down.

    >>> instant(1794704438.8615357)
    b'1794704438861535'
    """
    return b"%016d" % max(int(seconds * MICROSECONDS), 0)


def description(claim: Claim, channel: bytes) -> bytes:
    """The end of a claim's record, from `lease` on: see lua/head.lua."""
    lease, waiting = int(claim.lease * MICROSECONDS), int(claim.waiting * MICROSECONDS)
    sizes = f"{lease:016d}{waiting:016d}{claim.weight:016d}{claim.capacity:016d}{claim.kind:<16}{len(channel):04d}"
    return sizes.encode() + channel + claim.description.encode()


class Requests:
    """The requests for the claims of one lock object, packed but for what differs: see `Prepared` in core/rule.py."""

    __slots__ = ("is_large", "leave", "queue", "tries")

    def __init__(self, claim: Claim, channel: bytes, key: bytes, floor: bytes | None) -> None:
        keys = (1, key) if floor is None else (2, key, floor)
        about = description(claim, channel)
        self.queue, self.tries = (
            _pack(("EVALSHA", JOIN.sha, *keys, about, place, _ID, _TIME))[: -len(_END)] for place in ("l", "n")
        )
        """`join` in the queue, and one that is to wait nowhere: up to the id."""
        self.is_large = len(self.queue) > _LARGE
        """One `send` may not take all of it."""
        self.leave = _pack(("EVALSHA", LEAVE.sha, 1, key, _ID))[: -len(_ID) - 2]


_LARGE = 8192
_ID, _TIME = b"i" * 16, b"t" * DIGITS
BETWEEN = b"\r\n$%d\r\n" % DIGITS
"""Between the id of a claim and `by`, in a packed join."""
_END = _ID + BETWEEN + _TIME + b"\r\n"


def _read(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


_PARTS = {f"-- ({name}.lua)\n": _read(name) for name in ("head", "clock", "queue", "floor")}
_USUAL = "-- (head.lua)\nlocal head = call('HGET', key, 'h')\n-- (clock.lua)\n-- (queue.lua)\n"
"""How a verb without a short path begins."""


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
