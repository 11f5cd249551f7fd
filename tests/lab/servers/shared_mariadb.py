"""One MariaDB for all tests of a process, and a prefix of its own there for each that asks; see shared.py.

fresh(tmp_path)     # mysql://dibs:dibs@127.0.0.1:34567/dibs?prefix=fresh-12:
"""

from __future__ import annotations

import functools
import itertools
import os
from pathlib import Path

from lab.servers import ports
from lab.servers.mariadb import MariaDB
from lab.servers.programs import require
from lab.servers.shared import at_exit
from lab.servers.supervisor import Server

_numbers = itertools.count(1)


@functools.cache
def _kind() -> MariaDB:
    kind = MariaDB()
    at_exit(lambda: ports.release(kind.port))
    return kind


@functools.cache
def mariadb() -> Server:
    """It serves; where there is none, whoever asks is skipped."""
    require("mariadb")
    server = Server(_kind())
    at_exit(server.end)
    return server.start()


def fresh(_: Path) -> str:
    """The URL of a store in which nothing stands, as dibs.testing asks for it."""
    if "PYTEST_CURRENT_TEST" in os.environ:
        mariadb()
    return f"{_kind().url()}?prefix={prefix()}"


def prefix() -> str:
    return f"fresh-{next(_numbers)}:"
