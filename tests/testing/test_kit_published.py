"""The fixtures as others have them: found by pytest itself, once dibs is installed from its wheel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testing.throwaway import Acme, acme

__all__ = ["acme"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TESTS = """
import asyncio
import dibs, dibs.aio
import pytest

def test_the_clock(dibs_client):
    with dibs.connect().lock("job") as hold:
        dibs_client.clock.advance(86_400)
        hold.check()

def test_a_loss(dibs_client):
    with pytest.raises(dibs.LockLost), dibs_client.lock("job"):
        dibs_client.expire("job")

def test_both(dibs_client, dibs_aio_client):
    async def main():
        async with dibs_aio_client.lock("job"):
            assert dibs_client.lock("job").acquire(timeout=0) is None
    asyncio.run(main())

def test_an_overlap(dibs_client):
    dibs_client.lock("job").acquire()
    dibs_client.expire("job")
    dibs_client.lock("job").acquire()
"""


def test_a_project_that_depends_on_dibs_has_the_fixtures(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "test_acme.py").write_text(TESTS)
    done = acme.pytest("-q", "-n", "2", cwd=tmp_path)
    assert re.search(r"1 failed, 3 passed", done.stdout), done.stdout + done.stderr
    assert "FAILED test_acme.py::test_an_overlap" in done.stdout
    assert '"job": two holders at once' in done.stdout


def test_they_are_listed(acme: Acme, tmp_path: Path) -> None:
    done = acme.pytest("--fixtures", "-q", cwd=tmp_path)
    for name in ("dibs_client", "dibs_aio_client"):
        assert re.search(rf"^{name} .*", done.stdout, re.MULTILINE), done.stdout
