"""The programs of docs/stores/mysql.md that need a server run against one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dibs.backends.mysql import schema
from docs.test_docs import ROOT, Block, blocks_of
from lab.servers.shared_mariadb import mariadb

PAGE = ROOT / "docs" / "stores" / "mysql.md"
BLOCKS = [block for block in blocks_of(PAGE) if Path(__file__).name in block.reason]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_program_runs(block: Block) -> None:
    assert "@localhost/" in block.code
    program = block.code.replace("@localhost/", f"@127.0.0.1:{mariadb().port}/")
    program = program.replace('host="localhost"', f'host="127.0.0.1", port={mariadb().port}')
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=50, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    assert ended.stdout.strip(), "each of them says what it did"


def test_every_table_is_named_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in schema.TABLES if f"`dibs_{name}`" not in text] == []
