"""Names and paths: where a queue stands, where a value does, and back.

    "dibs:invoice:42"   ->  /dibs/invoice:42      what stands before the first colon is a directory of its own
    "/orders/42"        ->  /orders/42            as written: with namespace="", for sharing with other programs
    "a"                 ->  /a                    with namespace="", too

Whatever a path cannot hold is written as %XX, and so are `%` and `/` within a name; a path as written is not changed,
only checked. So no name of ours holds a `%` that is not followed by two digits: `%cell`, `%latch`, `%fence` and
`%written` are free for what is no queue, beside the queues of the same directory.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote

from dibs.errors import BadName

_FOREIGN = re.compile("[%/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
_BAD = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
_OURS = re.compile("%(?![0-9A-F]{2})")
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
    """The name of a queue at that path; None: no queue of ours, or of anybody's, is called so.

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
    """It may be one: what is no queue is called as no name is written."""
    return not _OURS.search(path)


def value_path(space: str, name: str) -> str:
    """
    >>> value_path("cell", "dibs:a"), value_path("fence", "a")
    ('/dibs/%cell/a', '/%fence/a')
    """
    directory, _, leaf = path_of(name).rpartition("/")
    return f"{directory}/%{space}/{leaf}"


def directory_of(prefix: str) -> str:
    """Where the queues stand whose names begin so; "" is the root.

    >>> directory_of("dibs:inv"), directory_of("/orders/4"), directory_of("in")
    ('/dibs', '/orders', '')
    """
    if prefix.startswith("/"):
        return prefix.rpartition("/")[0]
    space, colon, _ = prefix.partition(":")
    return f"/{_quoted(space)}" if colon and space else ""


def levels(path: str) -> list[str]:
    """The path and all above it, from the top.

    >>> levels("/a/b")
    ['/a', '/a/b']
    """
    parts = path.split("/")[1:]
    return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]


def _as_written(name: str) -> str:
    parts = name.split("/")[1:]
    if any(part in ("", ".", "..") for part in parts) or _BAD.search(name) or parts[0] == "zookeeper":
        raise BadName(
            f"{name[:80]!a} is not a path for a lock",
            step="give a path like /a/b, without empty or relative parts, or leave out the first slash",
        )
    return name


def _quoted(part: str) -> str:
    if part in _RESERVED:
        return "".join(f"%{byte:02X}" for byte in part.encode()) if part[0] == "." else f"%7A{part[1:]}"
    return _FOREIGN.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), part)
