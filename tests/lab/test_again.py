"""What failed is run again only where the host took the machine away, and once."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import again

TESTS = """
import pathlib, pytest
@pytest.mark.parametrize("n", ["a@b", "c"])
@pytest.mark.xdist_group("tests/group")
def test_it(n):
    runs = pathlib.Path(__file__).with_name(n)
    runs.write_text(runs.read_text() + "." if runs.exists() else ".")
    assert n == "c" or len(runs.read_text()) > {bad}
"""
WORKERS = ["-n", "2", "--dist", "loadgroup"]
HOW = ["-q", "--rootdir=."]


def runs(directory: Path) -> tuple[int, int]:
    return len((directory / "a@b").read_text()), len((directory / "c").read_text())


@pytest.mark.parametrize(
    ("bad", "least", "status", "seen"),
    [
        pytest.param(0, 0.0, 0, (1, 1), id="nothing failed"),
        pytest.param(1, 0.0, 0, (2, 1), id="stolen"),
        pytest.param(2, 0.0, 1, (2, 1), id="stolen, and failed again"),
        pytest.param(1, 1.1, 1, (1, 1), id="our own"),
    ],
)
@pytest.mark.parametrize("workers", [[], WORKERS], ids=["one", "workers"])
def test_what_is_run_again(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    workers: list[str],
    bad: int,
    least: float,
    status: int,
    seen: tuple[int, int],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("test_x.py").write_text(TESTS.format(bad=bad))
    assert again.main([*workers, "test_x.py"], HOW, least) == status
    assert runs(tmp_path) == seen


def test_what_is_not_about_tests_is_not_run_again(tmp_path: Path) -> None:
    assert again.main([str(tmp_path / "nothing.py")], HOW, 0.0) == 4


def test_what_the_host_took_is_counted() -> None:
    assert 0.0 <= again.stolen() <= again.uptime() * 1000
