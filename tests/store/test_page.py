"""The programs of docs/stores and docs/migrate that need a server run against one; and what the pages say of rights and
tables is what the stores print and make."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from dibs.backends.mysql import schema
from dibs.backends.postgresql.routines import Routines
from dibs.backends.redis import rights
from dibs.backends.redis.address import Address
from dibs.url import parse
from docs.test_docs import ROOT, Block, blocks_of
from lab.servers.shared_mariadb import mariadb
from lab.servers.shared_postgresql import postgresql
from lab.servers.shared_redis import redis
from lab.servers.supervisor import Server

_IMPORTED = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)
PLACES: dict[str, tuple[Callable[[], Server], int, dict[str, str]]] = {
    "redis": (
        redis,
        3,
        {
            "redis://localhost": "redis://127.0.0.1:{port}",
            'Redis(host="localhost"': 'Redis(host="127.0.0.1", port={port}',
        },
    ),
    "redisson": (redis, 1, {"redis://localhost": "redis://127.0.0.1:{port}"}),
    "postgresql": (postgresql, 4, {"ana:secret@localhost/app": "dibs:dibs@127.0.0.1:{port}/postgres"}),
    "mysql": (
        mariadb,
        4,
        {
            "dibs:dibs@localhost/": "dibs:dibs@127.0.0.1:{port}/",
            'connect(host="localhost"': 'connect(host="127.0.0.1", port={port}',
        },
    ),
}
"""By store: its server, how many programs its page has, and the text that is replaced here."""
_ONE = "print({name!r}, flush=True)\nexec(compile({code!r}, {name!r}, 'exec'), {{'__name__': '__main__'}})\n"


def page(store: str) -> Path:
    return ROOT / "docs" / "stores" / f"{store}.md"


def programs(path: Path) -> list[Block]:
    return [block for block in blocks_of(path) if Path(__file__).name in block.reason]


def migrations(store: str) -> list[Block]:
    """Those programs of docs/migrate that name this store's server."""
    found = [block for path in sorted((ROOT / "docs" / "migrate").glob("*.md")) for block in programs(path)]
    return [block for block in found if any(written in block.code for written in PLACES[store][2])]


@pytest.mark.timeout(150)
@pytest.mark.parametrize("store", PLACES)
def test_the_programs_run(store: str) -> None:
    """One after the other, in one process."""
    server, count, places = PLACES[store]
    blocks = programs(page(store))
    assert len(blocks) == count
    blocks += migrations(store)
    port, texts = server().port, []
    for block in blocks:
        code = block.code
        for written, here in places.items():
            code = code.replace(written, here.format(port=port))
        assert code != block.code, "it does not say where the server is"
        texts.append(_ONE.format(name=str(block), code=code))
    ended = subprocess.run(
        [sys.executable, "-c", "".join(texts)], check=False, timeout=140, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    *said, last = re.split("|".join(re.escape(str(block)) for block in blocks), ended.stdout)[1:]
    assert all(text.strip() for text in (*said, last)), "each of them says what it did"


def test_a_program_to_migrate_from_is_followed_by_one_with_dibs() -> None:
    for path in sorted((ROOT / "docs" / "migrate").glob("*.md")):
        uses = ["dibs" in _IMPORTED.findall(block.code) for block in programs(path)]
        assert all(after for before, after in pairwise([*uses, False]) if not before), path


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
