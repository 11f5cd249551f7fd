"""What things are called in Redis: one key for each name in each space, which is also the channel on which changes
there are told, and one channel for each client.

A key ends with a bar and its space, so no name, whatever is in it, meets another's key. All of one name is in one key,
hence in one slot of a cluster; a name with a {tag} in it chooses which, as Redis has it.
"""

from __future__ import annotations

from dibs.core.cells import CellKey

_MEANING = str.maketrans({sign: f"\\{sign}" for sign in "\\*?[]"})


def literal(text: str) -> str:
    """In a pattern of Redis's, this and nothing else.

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
        self.floor = None if is_sharded else f"{prefix}dibs:floor".encode()
        """See lua/floor.lua."""
        self.identity = f"{prefix}dibs:identity".encode()
        self.leases = f"{prefix}dibs:leases".encode()

    def queue(self, name: str) -> bytes:
        return f"{self._prefix}{name}|line".encode()

    def queues(self, prefix: str) -> bytes:
        """The pattern of the keys of all queues whose names begin so."""
        return f"{literal(self._prefix + prefix)}*|line".encode()

    def name(self, queue: bytes) -> str | None:
        """Of whose line this is the key; None: it is not one of ours."""
        try:
            return queue.decode().removeprefix(self._prefix).removesuffix("|line")
        except UnicodeDecodeError:
            return None

    def cell(self, cell_key: CellKey) -> bytes:
        return f"{self._prefix}{cell_key.name}|{cell_key.space}".encode()

    def client(self, id: bytes) -> bytes:
        return f"{self._prefix}dibs:client:{id.hex()}".encode()
