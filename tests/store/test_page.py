"""The programs of docs/stores that need a server and those of docs/migrate run, and the pages name the rights and
tables that the stores need."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dibs.backends.mysql import schema
from dibs.backends.postgresql.routines import Routines
from dibs.backends.redis import rights
from dibs.backends.redis.address import Address
from dibs.url import parse
from docs.test_docs import ROOT, blocks_of
from lab.servers import shared
from lab.servers.supervisor import Server

PROGRAMS = {"redis": 3, "redisson": 1, "postgresql": 4, "mysql": 4, "migrate": 12}
"""Pages, and how many programs they have."""
ADDRESSES: list[tuple[str, Callable[[], Server], str]] = [
    ("redis://localhost", shared.redis, "redis://127.0.0.1:{port}"),
    ('Redis(host="localhost"', shared.redis, 'Redis(host="127.0.0.1", port={port}'),
    ("ana:secret@localhost/app", shared.postgresql, "dibs:dibs@127.0.0.1:{port}/postgres"),
    ("dibs:dibs@localhost/", shared.mariadb, "dibs:dibs@127.0.0.1:{port}/"),
    ('host="localhost"', shared.mariadb, 'host="127.0.0.1", port={port}'),
    ("localhost:2181", shared.zookeeper, "127.0.0.1:{port}"),
]
"""Addresses in the programs, their servers, and the address here."""
_PROGRAM = re.compile(r"^```py\n((?:import|from) .+?)^```$", re.MULTILINE | re.DOTALL)
_UNTESTED = "aioredlock"
"""It needs a driver that Python 3.11 does not run."""


def page(store: str) -> Path:
    return ROOT / "docs" / "stores" / f"{store}.md"


def programs(where: str) -> list[str]:
    if where != "migrate":
        return [block.code for block in blocks_of(page(where)) if Path(__file__).name in block.reason]
    pages = sorted((ROOT / "docs" / "migrate").glob("*.md"))
    found = [code for path in pages for code in _PROGRAM.findall(path.read_text(encoding="utf-8"))]
    return [code for code in found if _UNTESTED not in code]


def here(code: str) -> str:
    """The program, with the addresses of servers that run here."""
    text = code
    for written, server, address in ADDRESSES:
        if written in text:
            text = text.replace(written, address.format(port=server().port))
    assert text != code or "open(" in text or "FileLock" in text, "it does not name its server"
    return text


@pytest.mark.gate
@pytest.mark.timeout(150)
@pytest.mark.parametrize("where", PROGRAMS)
def test_the_programs_run(where: str, tmp_path: Path) -> None:
    """One after the other, in one process."""
    codes = [here(code) for code in programs(where)]
    assert len(codes) == PROGRAMS[where]
    parts = [f"exec({code!r}, {{'__name__': '__main__'}})\nprint('\\0', end='')\n" for code in codes]
    command = [sys.executable, "-c", "".join(parts)]
    ended = subprocess.run(command, check=False, timeout=140, capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    said = ended.stdout.split("\0")[:-1]
    assert all(text.strip() for text in said), "each of them says what it did"
    assert where != "migrate" or ended.stdout.count("writing the report") == len(codes)


def test_the_rights_on_redis_are_those_that_doctor_prints() -> None:
    text = page("redis").read_text(encoding="utf-8")
    assert rights.least(Address.of(parse("redis://localhost/0"))) in text
    least = set(rights.commands(Address.of(parse("redis://h"))))
    for url, options in (("redis+sentinel://h/main", {}), ("redis+cluster://h", {}), ("redis://h", {"replicas": 1})):
        for command in set(rights.commands(Address.of(parse(url), **options))) - least:
            assert f"+{command}".replace("|", "\\|") in text


def test_the_rights_on_postgresql_are_those_that_are_printed() -> None:
    told = re.findall(r"GRANT .*;", Routines("dibs").grants())
    assert len(told) == 4
    for grant in told:
        assert grant.replace("TO role", "TO app") in page("postgresql").read_text(encoding="utf-8")


def test_every_table_on_mysql_is_named() -> None:
    text = page("mysql").read_text(encoding="utf-8")
    assert [name for name in schema.TABLES if f"`dibs_{name}`" not in text] == []
