"""One PostgreSQL for all tests of a process, and a schema of its own there for each that asks; see shared.py.

fresh(tmp_path)     # postgresql://dibs:dibs@127.0.0.1:34567/postgres?schema=fresh-12
"""

from __future__ import annotations

import functools
import itertools
import os
from pathlib import Path

from lab.servers import ports
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import require
from lab.servers.schemas import Schemas
from lab.servers.shared import at_exit
from lab.servers.supervisor import Server

_numbers = itertools.count(1)


@functools.cache
def _kind() -> PostgreSQL:
    kind = PostgreSQL("max_connections=300")
    at_exit(lambda: ports.release(kind.port))
    return kind


@functools.cache
def postgresql() -> Server:
    """It serves; where there is none, whoever asks is skipped."""
    require("postgresql")
    server = Server(_kind())
    at_exit(server.end)
    return server.start()


def fresh(place: Path) -> str:
    """The URL of a store in which nothing stands, as dibs.testing asks for it."""
    url = _kind().url()
    if "PYTEST_CURRENT_TEST" not in os.environ:
        return f"{url}?schema={schema()}"
    postgresql()
    return f"{url}?schema={_schemas(url).fresh(place)}"


@functools.cache
def _schemas(url: str) -> Schemas:
    return Schemas(url)


def schema() -> str:
    return f"fresh-{next(_numbers)}"
