"""Free ports on loopback that stay reserved from before a server starts until after it ended.

A reservation is a socket that is bound and never listens. With SO_REUSEADDR on both sides (every server of the lab sets
it) Linux lets the server listen on that port, but gives it to nobody who asks for any free port.
"""

from __future__ import annotations

import socket
from pathlib import Path

HOST = "127.0.0.1"
LISTEN = "0A"
_reserved: dict[int, socket.socket] = {}


def reserve() -> int:
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind((HOST, 0))
    port = int(keeper.getsockname()[1])
    _reserved[port] = keeper
    return port


def release(port: int) -> None:
    if keeper := _reserved.pop(port, None):
        keeper.close()


def listening(port: int) -> bool:
    """Whether somebody accepts connections there; asked of the kernel, so that nobody notices."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = row.split()
            if state == LISTEN and int(local.rpartition(":")[2], 16) == port:
                return True
    return False
