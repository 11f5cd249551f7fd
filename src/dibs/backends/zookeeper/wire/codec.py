"""The bytes of ZooKeeper's protocol. No I/O.

Every message is a frame: four bytes of length, then that many bytes. The first frame each way is the greeting. After
it, a request is `xid, operation, body` and a reply is `xid, zxid, error, body`. Replies come in the order of the
requests. Some xids are reserved: for events of watches, pings, logins, and watches that are set again.

Numbers are big-endian. A text or buffer is its length and its bytes; length -1 stands for none. A `Request` knows how
to read its reply. Anything unexpected from the server raises `Garbled`: the meaning of the bytes behind it is unknown,
so the connection is unusable. Reading is bounded by the frame, and the frame by `LARGEST`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from dibs.errors import StoreError, StoreUnavailable

LARGEST = 16 << 20
"""Bytes of the largest frame: a directory with about 200,000 children."""

EVENT, PING, AUTH, SET_WATCHES = -1, -2, -4, -8
"""The reserved xids."""

OK, UNIMPLEMENTED, NO_NODE, NO_AUTH, BAD_VERSION = 0, -6, -101, -102, -103
NODE_EXISTS, NOT_EMPTY, EXPIRED, AUTH_FAILED, MOVED, NO_WATCHER = -110, -111, -112, -115, -118, -121
LOGIN_WANTED = -124
ERRORS = {
    -1: "the server failed", -2: "the server failed (inconsistent)", -3: "the server failed (inconsistent data)",
    -5: "the server could not read the request", UNIMPLEMENTED: "the server does not know this request",
    -7: "the server took too long", -8: "the server refuses the arguments", NO_NODE: "there is no such node",
    NO_AUTH: "the ACL of the node does not allow it", BAD_VERSION: "the node has another version",
    -108: "ephemeral nodes have no children", NODE_EXISTS: "the node exists", NOT_EMPTY: "the node has children",
    EXPIRED: "the session is over", -114: "the server refuses the ACL", AUTH_FAILED: "the server refuses the login",
    MOVED: "the session has moved to another server", -119: "the server only reads", NO_WATCHER: "no such watch",
    -122: "the server took too long", LOGIN_WANTED: "the server wants a login first", -125: "a quota is used up",
    -127: "the server is overloaded",
}  # fmt: skip
PERSISTENT, EPHEMERAL, EPHEMERAL_SEQUENTIAL, CONTAINER = 0, 1, 3, 4
CREATED, DELETED, CHANGED, CHILDREN = 1, 2, 3, 4
"""Kinds of event; others are ignored."""

REQUEST = struct.Struct("!ii")
"""Length and xid of a request; its operation and body follow."""
REPLY = struct.Struct("!iiqi")
"""Length, xid, zxid and error of a reply; its body follows."""
_INT = struct.Struct("!i")
_LONG = struct.Struct("!q")
_HEAD = struct.Struct("!iqi")
_STAT = struct.Struct("!qqqqiiiqiiq")
_GREETING = struct.Struct("!iqiqi")
_MULTI = struct.Struct("!i?i")
BODY = _HEAD.size
"""Where the body of a reply begins in its frame."""
_SHORT = "a reply is shorter than what it should hold"


class Garbled(Exception):
    """The server sent something that is not ZooKeeper's protocol."""


class Stat(NamedTuple):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    """The session of an ephemeral node."""
    size: int
    children: int
    pzxid: int


class Event(NamedTuple):
    kind: int
    path: str


class Welcome(NamedTuple):
    """The reply to a greeting; session 0: the requested session is over."""

    timeout_ms: int
    session: int
    password: bytes


class Created(NamedTuple):
    path: str
    stat: Stat


class Node(NamedTuple):
    data: bytes
    stat: Stat


class Reader:
    """Reads one frame, and never beyond it."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    def unpack(self, shape: struct.Struct) -> tuple[Any, ...]:
        at = self._at
        self._at = at + shape.size
        try:
            return shape.unpack_from(self._data, at)
        except struct.error:
            raise Garbled(_SHORT) from None

    def int(self) -> int:
        value: int = self.unpack(_INT)[0]
        return value

    def buffer(self) -> bytes:
        size = max(self.int(), 0)
        at = self._at
        if at + size > len(self._data):
            raise Garbled(_SHORT)
        self._at = at + size
        return self._data[at : at + size]

    def text(self) -> str:
        try:
            return self.buffer().decode()
        except UnicodeDecodeError:
            raise Garbled("a reply holds a text that is not UTF-8") from None

    def texts(self) -> list[str]:
        count = self.int()
        if count * _INT.size > len(self._data):
            raise Garbled(_SHORT)
        data, at, found = self._data, self._at, []
        try:
            for _ in range(count):  # without calls, as there may be thousands
                (size,) = _INT.unpack_from(data, at)
                at += _INT.size
                if not 0 <= size <= len(data) - at:
                    raise Garbled(_SHORT)
                found.append(data[at : at + size].decode())
                at += size
        except struct.error:
            raise Garbled(_SHORT) from None
        except UnicodeDecodeError:
            raise Garbled("a reply holds a text that is not UTF-8") from None
        self._at = at
        return found

    def stat(self) -> Stat:
        return Stat(*self.unpack(_STAT))


class Request:
    """The part of a request behind the xid, and the reader of its reply."""

    __slots__ = ("body", "operation", "read")

    def __init__(self, operation: int, body: bytes, read: Callable[[Reader], object]) -> None:
        self.operation = operation
        self.body = body
        self.read = read

    def packed(self) -> bytes:
        """The bytes behind the xid."""
        return _INT.pack(self.operation) + self.body


def buffer(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def text(said: str) -> bytes:
    return buffer(said.encode())


def encode(xid: int, request: Request) -> bytes:
    body = request.packed()
    return REQUEST.pack(len(body) + 4, xid) + body


def frames(data: bytearray) -> Iterator[bytes]:
    """Pop the complete frames from the front."""
    at, end = 0, len(data)
    try:
        while end - at >= 4:
            (size,) = _INT.unpack_from(data, at)
            if not 0 <= size <= LARGEST:
                raise Garbled(f"a frame of {size} bytes, where 0 to {LARGEST} may be")
            if end - at - 4 < size:
                return
            at += 4 + size
            yield bytes(data[at - size : at])
    finally:
        del data[:at]


def head(data: bytes) -> tuple[int, int, int]:
    """xid, zxid and error of a reply."""
    if len(data) < BODY:
        raise Garbled("a reply is shorter than its head")
    found: tuple[int, int, int] = _HEAD.unpack_from(data)
    return found


def greeting(zxid: int, timeout_ms: int, session: int, password: bytes) -> bytes:
    return buffer(_GREETING.pack(0, zxid, timeout_ms, session, len(password)) + password + b"\0")


def welcome(data: bytes) -> Welcome:
    reader = Reader(data)
    reader.int()
    timeout = reader.int()
    (session,) = reader.unpack(_LONG)
    return Welcome(timeout, session, reader.buffer())


def event(data: bytes) -> Event:
    reader = Reader(data, BODY)
    kind = reader.int()
    reader.int()  # the state of the connection, which is known
    return Event(kind, reader.text())


def _acl(*entries: tuple[int, str, str]) -> bytes:
    """Each entry has rights, scheme and id."""
    parts = [_INT.pack(rights) + text(scheme) + text(who) for rights, scheme, who in entries]
    return _INT.pack(len(entries)) + b"".join(parts)


OPEN_ACL = _acl((31, "world", "anyone"))
CREATOR_ACL = _acl((31, "auth", ""))
CREATOR_READ_ACL = _acl((31, "auth", ""), (1, "world", "anyone"))


def _nothing(_: Reader) -> None:
    return None


def _created(reader: Reader) -> Created:
    return Created(reader.text(), reader.stat())


def _node(reader: Reader) -> Node:
    return Node(reader.buffer(), reader.stat())


class Children(list[str]):
    """The names of the children of a node, and the `stat` of the node itself."""

    __slots__ = ("stat",)

    def __init__(self, names: list[str], stat: Stat) -> None:
        super().__init__(names)
        self.stat = stat


def _children(reader: Reader) -> Children:
    return Children(reader.texts(), reader.stat())


def create(path: str, data: bytes, acl: bytes, mode: int) -> Request:
    """Reads `Created`."""
    body = b"".join((text(path), buffer(data), acl, _INT.pack(mode)))
    return Request(19 if mode == CONTAINER else 15, body, _created)


DELETE, ANY_VERSION = 2, _INT.pack(-1)


def delete(path: str) -> Request:
    return Request(DELETE, text(path) + ANY_VERSION, _nothing)


def exists(path: str, *, watch: bool = False) -> Request:
    """Reads `Stat`."""
    return Request(3, text(path) + bytes((watch,)), Reader.stat)


def get(path: str, *, watch: bool = False) -> Request:
    """Reads `Node`."""
    return Request(4, text(path) + bytes((watch,)), _node)


def put(path: str, data: bytes, version: int) -> Request:
    """Reads `Stat`."""
    return Request(5, text(path) + buffer(data) + _INT.pack(version), Reader.stat)


def children(path: str, *, watch: bool = False) -> Request:
    """Reads `Children`."""
    return Request(12, text(path) + bytes((watch,)), _children)


def sync(path: str) -> Request:
    return Request(9, text(path), _nothing)


OF_CHILDREN, OF_DATA = 1, 2
"""Kinds of watch, for `remove_watches`."""


def remove_watches(path: str, kind: int) -> Request:
    return Request(18, text(path) + _INT.pack(kind), _nothing)


def set_watches(zxid: int, data: Sequence[str], exist: Sequence[str], child: Sequence[str]) -> Request:
    parts = [_LONG.pack(zxid)]
    for paths in (data, exist, child):
        parts.append(_INT.pack(len(paths)))
        parts += [text(path) for path in paths]
    return Request(101, b"".join(parts), _nothing)


def auth(scheme: str, data: bytes) -> Request:
    return Request(100, _INT.pack(0) + text(scheme) + buffer(data), _nothing)


def sasl(token: bytes) -> Request:
    """Reads the server's token."""
    return Request(102, buffer(token), Reader.buffer)


def close() -> Request:
    return Request(-11, b"", _nothing)


def shape_of_first(path: int, name: int) -> tuple[tuple[int, int], struct.Struct]:
    """The shape of the replies to a creation and to a listing that shows only the created node. `path` and `name` are
    the lengths of its path and name. Returns the sizes of both replies, and the format of: path, czxid and owner of the
    node; number and name of the children; czxid of the directory."""
    created, listed = REPLY.size + 4 + path + _STAT.size, REPLY.size + 8 + name + _STAT.size
    return (created, listed), struct.Struct(f"!24x{path}sq36xq16x20xi4x{name}sq60x")


class Refused(NamedTuple):
    """The errors of the parts of a `multi` that was refused; 0 for parts that would have succeeded."""

    errors: tuple[int, ...]


def multi(parts: Sequence[Request]) -> Request:
    """All or none of the requests. Reads the result of each, or `Refused`. The result of a creation is the path only,
    because servers differ in the rest."""
    body = [_MULTI.pack(part.operation, False, -1) + part.body for part in parts]
    readers = [part.read for part in parts]

    def read(reader: Reader) -> list[object] | Refused:
        results: list[object] = []
        errors: list[int] = []
        for part in readers:
            kind, done, _ = reader.unpack(_MULTI)
            if done:
                raise Garbled("a reply to several requests ends too early")
            if kind == -1:
                errors.append(reader.int())
            elif kind == 1:
                results.append(reader.text())
            else:
                value = part(reader)
                results.append(value.path if isinstance(value, Created) else value)
        return Refused(tuple(errors)) if errors else results

    return Request(14, b"".join([*body, _MULTI.pack(-1, True, -1)]), read)


def refusal(error: int) -> StoreError:
    """The exception for an unexpected error of the server."""
    said = ERRORS.get(error, f"the server's error {error}")
    if error == NO_AUTH:
        return StoreError(said, step="log in (zookeeper://user:password@...), or have the ACL changed")
    if error == LOGIN_WANTED:
        return StoreError(said, step="log in (zookeeper://user:password@..., with auth=sasl if it wants that)")
    if error in (EXPIRED, MOVED, AUTH_FAILED, -4, -7, -122, -127):
        return StoreUnavailable(said)
    return StoreError(said)
