"""Keys and channels. Each name has one key in each space; the key is also the channel for changes of the name. Each
client has a channel of its own.

A key ends with a bar and its space, so no two names share a key, whatever characters they contain. All data of a name
is in one key, hence in one slot of a cluster. A name with a {tag} chooses its slot by the tag, as usual in Redis.
"""

from __future__ import annotations

from dibs.core.cells import CellKey

_MEANING = str.maketrans({sign: f"\\{sign}" for sign in "\\*?[]"})


def literal(text: str) -> str:
    """Escape a text for a pattern of Redis.

    >>> literal("a*[b]")
    'a\\\\*\\\\[b\\\\]'
    """
    return text.translate(_MEANING)


class Keys:
    """
    >>> Keys("app/").queue("dibs:invoice:42"), Keys("").cell(CellKey("fence", "dibs:disk"))
    (b'app/dibs:invoice:42|line', b'dibs:disk|fence')
    """

    def __init__(self, prefix: str, is_sharded: bool = False) -> None:
        self._prefix = prefix
        self.floor = () if is_sharded else (f"{prefix}dibs:floor".encode(),)
        """See lua/floor.lua. Empty in a cluster."""
        self.identity = f"{prefix}dibs:identity".encode()
        self.leases = f"{prefix}dibs:leases".encode()

    def queue(self, name: str) -> bytes:
        return f"{self._prefix}{name}|line".encode()

    def queues(self, prefix: str) -> bytes:
        """The pattern for the keys of all queues whose names begin with `prefix`."""
        return f"{literal(self._prefix + prefix)}*|line".encode()

    def name(self, queue: bytes) -> str | None:
        """The name of the queue with this key; None: it is not one of ours."""
        try:
            return queue.decode().removeprefix(self._prefix).removesuffix("|line")
        except UnicodeDecodeError:
            return None

    def cell(self, cell_key: CellKey) -> bytes:
        return f"{self._prefix}{cell_key.name}|{cell_key.space}".encode()

    def client(self, id: bytes) -> bytes:
        return f"{self._prefix}dibs:client:{id.hex()}".encode()
