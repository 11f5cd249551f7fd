"""The programs of docs/stores/postgresql.md that need a server run against one; its rights are those printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.backends.postgresql.routines import Routines
from docs.test_docs import ROOT, Block, blocks_of
from lab.servers.postgresql import NAME
from lab.servers.programs import require
from lab.servers.shared_postgresql import postgresql

PAGE = ROOT / "docs" / "stores" / "postgresql.md"
BLOCKS = [block for block in blocks_of(PAGE) if Path(__file__).name in block.reason]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_program_runs(block: Block) -> None:
    require("postgresql")
    assert "ana:secret@localhost/app" in block.code
    place = f"{NAME}:{NAME}@127.0.0.1:{postgresql().port}/postgres"
    program = block.code.replace("ana:secret@localhost/app", place)
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=50, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    assert ended.stdout.strip(), "each of them says what it did"


def test_the_rights_are_those_that_are_printed() -> None:
    told = re.findall(r"GRANT .*;", Routines("dibs").grants())
    assert len(told) == 4
    for grant in told:
        assert grant.replace("TO role", "TO app") in PAGE.read_text(encoding="utf-8")
