"""The MySQL protocol after the login: how requests are packed and replies are read. No I/O.

PyMySQL logs in. Its cursors are not used: a statement by them takes ten times as long. Every value is sent as a
hexadecimal or decimal literal, or as a parameter, so user input never becomes part of a statement's text.
"""

from __future__ import annotations

from collections.abc import Sequence

from dibs.backends.common import executor
from dibs.errors import StoreUnavailable

Argument = bytes | str | int
Row = tuple[bytes | None, ...]


class Sets(list[list[Row]]):
    """The result sets of a statement: for each a list of rows, whose values are text."""

    changed = made = 0
    """How many rows the statement changed, and its LAST_INSERT_ID, if it gave no rows."""


MOST = 64 * 1024 * 1024
"""Bytes of one reply; no routine of ours gives more."""
QUIT = b"\x01\x00\x00\x00\x01"
_LONGEST = 0xFFFFFF
_MORE = 8
"""The status bit that announces another result set."""


class Refusal(executor.Refusal):
    """The server replied with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


def statement(text: str) -> bytes:
    return _command(b"\x03", text)


def preparation(text: str) -> bytes:
    return _command(b"\x16", text)


def _command(code: bytes, text: str) -> bytes:
    data = code + text.encode()
    if len(data) >= _LONGEST:
        raise ValueError("the statement is too long")
    return len(data).to_bytes(3, "little") + b"\x00" + data


def literal(value: Argument) -> str:
    """
    >>> literal(17), literal("a'b"), literal(b"")
    ('17', "x'612762'", "x''")
    """
    if type(value) is int:
        return str(value)
    return f"x'{(value.encode() if isinstance(value, str) else bytes(value)).hex()}'"


def prepared(reply: bytes) -> bytes | None:
    """Read the reply to a `preparation`: the first bytes of the commands that execute the statement. Empty: the server
    refused it. None: the reply is not complete; a description of each parameter and an end follow the first packet."""
    packets, at = [], 0
    while len(reply) >= at + 4 and len(reply) >= (end := at + 4 + int.from_bytes(reply[at : at + 3], "little")):
        packets.append(reply[at + 4 : end])
        at = end
    if not packets:
        return None
    if packets[0][:1] != b"\x00":
        return b""
    parameters = int.from_bytes(packets[0][7:9], "little")
    return b"\x17" + packets[0][1:5] if len(packets) > parameters + 1 or not parameters else None


def execution(values: Sequence[Argument]) -> bytes:
    """The rest of a command that executes a prepared statement, after the bytes that `prepared` gave."""
    types = b"".join([b"\x08\x00" if type(one) is int else b"\xfc\x00" for one in values])
    packed = b"".join(map(value, values))
    return b"\x00\x01\x00\x00\x00" + bytes((len(values) + 7) // 8) + b"\x01" + types + packed


def value(given: Argument) -> bytes:
    """Pack a parameter of a prepared statement: a number as eight bytes, anything else as length and at most 64 kB."""
    if type(given) is int:
        return given.to_bytes(8, "little", signed=True)
    data = given.encode() if isinstance(given, str) else bytes(given)
    size = len(data)
    return (bytes((size,)) if size < 0xFB else b"\xfc" + size.to_bytes(2, "little")) + data


def call(routine: str, arguments: Sequence[Argument]) -> bytes:
    return statement(f"CALL dibs_2_{routine}({','.join([literal(value) for value in arguments])})")


class Reply:
    """The reply to one statement, read from a stream of bytes."""

    __slots__ = ("_buffer", "_fed", "_rows", "_state", "refusal", "sets")

    def __init__(self) -> None:
        self._buffer = b""
        self._fed = 0
        self._rows: list[Row] = []
        self._state = _BEGIN
        self.sets = Sets()
        """The result sets that are complete."""
        self.refusal: Refusal | None = None

    def feed(self, received: bytes) -> bool:
        """True: the reply is complete."""
        if not received:
            raise StoreUnavailable("the server closed the connection")
        self._fed += len(received)
        if self._fed > MOST:
            raise StoreUnavailable(f"the server's reply is longer than {MOST >> 20} MiB")
        data = self._buffer + received if self._buffer else received
        at, end = 0, len(data)
        while at + 4 <= end:
            size = int.from_bytes(data[at : at + 3], "little")
            if size == _LONGEST:
                raise StoreUnavailable("the server's reply is too long")
            if at + 4 + size > end:
                break
            at += 4
            if self._state == _COLUMNS and size and data[at] < 0xFE:  # the description of a column
                at += size
                continue
            if self._take(data, at, size):
                if at + size != end:
                    raise StoreUnavailable("the server sent an unexpected message")
                return True
            at += size
        self._buffer = data[at:]
        return False

    def result(self) -> Sets:
        """The result sets of a complete reply. Raises Refusal."""
        if self.refusal is not None:
            raise self.refusal
        return self.sets

    def _take(self, data: bytes, at: int, size: int) -> bool:
        first = data[at] if size else 0
        if first == 0xFF:
            # FF, the error code, # and five letters, the text
            text = data[at + 3 : at + size]
            self.refusal = Refusal(
                int.from_bytes(data[at + 1 : at + 3], "little"),
                (text[6:] if text[:1] == b"#" else text).decode(errors="replace"),
            )
            return True
        if self._state == _ROWS:
            if first == 0xFE and size < 9:
                self.sets.append(self._rows)
                self._rows = []
                self._state = _BEGIN
                return not data[at + 3] & _MORE
            self._rows.append(_row(data, at, at + size))
            return False
        if self._state == _BEGIN:
            if first == 0xFB:
                raise StoreUnavailable("the server asks for a local file")
            if first:
                self._state = _COLUMNS
                return False
            self.sets.changed, at = _number(data, at + 1)
            self.sets.made, at = _number(data, at)
            return not data[at] & _MORE
        if first == 0xFE and size < 9:
            self._state = _ROWS
        return False


_BEGIN, _COLUMNS, _ROWS = range(3)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of variable length. Gives the number and the position after it."""
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
    if width is None:
        raise StoreUnavailable("the server there is not MySQL or MariaDB")
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width


def _row(data: bytes, at: int, end: int) -> Row:
    found: list[bytes | None] = []
    while at < end:
        size = data[at]
        if size == 0xFB:
            found.append(None)
            at += 1
            continue
        if size < 0xFB:
            at += 1
        else:
            size, at = _number(data, at)
        found.append(data[at : at + size])
        at += size
    if at != end:
        raise StoreUnavailable("the server there is not MySQL or MariaDB")
    return tuple(found)
