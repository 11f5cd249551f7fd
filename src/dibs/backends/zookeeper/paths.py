"""Paths of queues and values, by the names of locks, and back.

    "dibs:invoice:42"   ->  /dibs/invoice:42      the part before the first colon is a directory
    "/orders/42"        ->  /orders/42            as written: with namespace="", to share with other programs
    "a"                 ->  /a                    with namespace=""

Characters that a path cannot contain are written as %XX, and so are `%` and `/` within a name. A name that is a path is
checked and not changed. So no path of a queue contains a `%` without two digits behind it: `%cell`, `%latch`, `%fence`
and `%written` cannot collide with queues in the same directory.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote

from dibs.errors import BadName

_BAD = "\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff"
BAD_CHARACTER = re.compile(f"[{_BAD}]")
"""The server uses UTF-16 and refuses surrogates, hence all characters beyond U+FFFF."""
_QUOTED = re.compile(f"[%/{_BAD}]")
_NOT_A_QUEUE = re.compile("%(?![0-9A-F]{2})")
_RESERVED = frozenset({".", "..", "zookeeper"})


@lru_cache(maxsize=1024)
def path_of(name: str) -> str:
    """
    >>> path_of("dibs:a/b"), path_of("/a/b"), path_of("a"), path_of("dibs:..")
    ('/dibs/a%2Fb', '/a/b', '/a', '/dibs/%2E%2E')
    """
    if name.startswith("/"):
        return _as_written(name)
    space, colon, rest = name.partition(":")
    if not colon or not space or not rest:
        return "/" + _quoted(name)
    return f"/{_quoted(space)}/{_quoted(rest)}"


def name_of(path: str) -> str | None:
    """The name of the queue at a path; None: it cannot be a queue.

    >>> name_of("/dibs/a%2Fb"), name_of("/a"), name_of("/a/b/c"), name_of("/dibs/%cell")
    ('dibs:a/b', 'a', '/a/b/c', None)
    """
    if not is_queue(path):
        return None
    parts = path.split("/")[1:]
    if len(parts) > 2:
        return path
    name = ":".join(map(unquote, parts))
    return name if path_of(name) == path else path


def is_queue(path: str) -> bool:
    """Whether a path may be that of a queue."""
    return not _NOT_A_QUEUE.search(path)


def value_path(space: str, name: str) -> str:
    """
    >>> value_path("cell", "dibs:a"), value_path("fence", "a")
    ('/dibs/%cell/a', '/%fence/a')
    """
    directory, _, leaf = path_of(name).rpartition("/")
    return f"{directory}/%{space}/{leaf}"


def directory_of(prefix: str) -> str:
    """The directory of the queues whose names begin with `prefix`; "" is the root.

    >>> directory_of("dibs:inv"), directory_of("/orders/4"), directory_of("in")
    ('/dibs', '/orders', '')
    """
    if prefix.startswith("/"):
        return prefix.rpartition("/")[0]
    space, colon, _ = prefix.partition(":")
    return f"/{_quoted(space)}" if colon and space else ""


def levels(path: str) -> list[str]:
    """The path and all its parents, from the top.

    >>> levels("/a/b")
    ['/a', '/a/b']
    """
    parts = path.split("/")[1:]
    return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]


def _as_written(name: str) -> str:
    parts = name.split("/")[1:]
    if any(part in ("", ".", "..") for part in parts) or BAD_CHARACTER.search(name) or parts[0] == "zookeeper":
        raise BadName(
            f"{name[:80]!a} is not a path for a lock",
            step="give a path like /a/b, without empty or relative parts, or leave out the first slash",
        )
    return name


def _quoted(part: str) -> str:
    if part in _RESERVED:
        return "".join(f"%{byte:02X}" for byte in part.encode()) if part[0] == "." else f"%7A{part[1:]}"
    return _QUOTED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), part)
