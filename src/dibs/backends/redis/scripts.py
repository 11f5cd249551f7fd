"""The scripts: one per verb, in lua/. Those about a line begin with what they share: stands.lua, which reads, and
line.lua, which walks and writes. A verb that often has done without the latter says where it is to come. Verbs that
give tickets have floor.lua, too."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from importlib.resources import files
from typing import Protocol

import hiredis

_pack_texts: Callable[[tuple[bytes | str, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]
"""Its stub says: of one word."""
MICROSECONDS = 1_000_000
Argument = bytes | str | int


def _pack(words: tuple[Argument, ...]) -> bytes:
    """Numbers as text: hiredis makes that of them, too, but a signal whose handler raises, Ctrl-C, kills the process if
    it comes just then (3.5 does not expect that to fail)."""
    return _pack_texts(tuple([str(word) if type(word) is int else word for word in words]))  # type: ignore[misc]


class Script:
    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
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


class Call:
    """One script with its key and arguments. `by`, an instant of the local clock, is sent behind them as the server's
    time (see `Connection`), rounded down, that is early. `floor`: a second key, at the same server."""

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
        by = () if self.by is None else (int((self.by + offset) * MICROSECONDS),)
        if self.floor is None:
            return _pack((*self._words, 1, self.key, *self.args, *by))
        return _pack((*self._words, 2, self.key, self.floor, *self.args, *by))

    def whole(self) -> Call:
        """The same with the text of its script, for a server that does not know it."""
        call = Call(self.script, self.key, self.args, self.by, self.floor)
        call._words = ("EVAL", self.script.text)
        return call


def _read(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


_STANDS, _LINE, _HERE = _read("stands"), _read("line"), "-- (line.lua)\n"
_FLOOR, _FLOOR_HERE = _read("floor"), "-- (floor.lua)\n"


def _verb(name: str) -> Script:
    text = _read(name).replace(_FLOOR_HERE, _FLOOR)
    return Script(name, _STANDS + (text.replace(_HERE, _LINE) if _HERE in text else _LINE + text))


JOIN, RENEW, LEAVE, AMEND = _verb("join"), _verb("renew"), _verb("leave"), _verb("amend")
EVICT, REVOKE, LOOK, FOREMOST = _verb("evict"), _verb("revoke"), _verb("look"), _verb("foremost")
STAMP = _verb("stamp")
PUT, ADMIT, LEASES = Script("put", _read("put")), Script("admit", _read("admit")), Script("leases", _read("leases"))
