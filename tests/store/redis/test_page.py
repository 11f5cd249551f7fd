"""The programs of docs/stores/redis.md that need a server run against one, those of the packages that one comes from
too; and what the page says about rights is what `doctor` prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.backends.redis import rights
from dibs.backends.redis.address import Address
from dibs.url import parse
from docs.test_docs import ROOT, Block, blocks_of
from lab.servers.programs import require
from lab.servers.shared_redis import redis

PAGE = ROOT / "docs" / "stores" / "redis.md"
BLOCKS = [block for block in blocks_of(PAGE) if Path(__file__).name in block.reason]
_IMPORTED = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_program_runs(block: Block) -> None:
    require("redis")
    port = redis().port
    assert "://localhost/" in block.code
    program = block.code.replace("://localhost/", f"://127.0.0.1:{port}/")
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=50, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    assert ended.stdout.strip(), "each of them says what it did"


def test_each_package_has_a_program_before_and_one_after() -> None:
    imported = [set(_IMPORTED.findall(block.code)) for block in BLOCKS]
    for package in ("redis_lock", "pottery"):
        (at,) = [number for number, packages in enumerate(imported) if package in packages]
        assert "dibs" in imported[at + 1]
    assert len(BLOCKS) == 9


def test_the_rights_are_those_that_doctor_prints() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert rights.least(Address.of(parse("redis://localhost/0"))) in text
    for url, options in (
        ("redis+sentinel://h/main", {}),
        ("redis+cluster://h", {}),
        ("redis://h", {"replicas": 1}),
    ):
        more = set(rights.commands(Address.of(parse(url), **options))) - set(
            rights.commands(Address.of(parse("redis://h")))
        )
        for command in more:
            assert f"+{command}".replace("|", "\\|") in text
