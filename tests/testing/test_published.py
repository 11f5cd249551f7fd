"""dibs.testing as others have it: installed from the wheel, run over the stores of a throw-away package (acme/)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testing.throwaway import Acme, acme

__all__ = ["acme"]

pytestmark = [pytest.mark.gate, pytest.mark.slow, pytest.mark.timeout(600)]

SUITE = "dibs.testing.contract"
CAN_DO_ALL, CAN_DO_LEAST = "acme=acme_locks.testing:fresh", "plain=acme_locks.testing:plain"
BROKEN = {
    "leave": {"test_leave_is_idempotent", "test_a_leave_with_another_id_changes_nothing"},
    "wake": {
        "test_leave_wakes_exactly_the_next",
        "test_unfair_waiters_are_told_to_look_when_nobody_in_the_queue_is_freed",
    },
}
"""Each broken store of the throw-away package, and what must tell."""
PARTS = [f"--dibs-part={part}" for part in ("plain=store", "acme=verbs")]
FIXTURES = """
import asyncio
import dibs
import pytest
import sys

def test_nothing_is_loaded_that_nobody_asked_for():
    assert 'dibs.testing.plugin' in sys.modules
    assert not {'dibs.aio', 'dibs.testing.kit', 'dibs.testing.contract', 'sqlite3'} & sys.modules.keys()

def test_both(dibs_client, dibs_aio_client):
    async def main():
        async with dibs_aio_client.lock("job") as hold:
            dibs_client.clock.advance(3600)
            hold.check()
            assert await dibs.aio.connect().lock("job").acquire(timeout=0) is None
    asyncio.run(main())

def test_an_overlap(dibs_client):
    dibs_client.lock("job").acquire()
    dibs_client.expire("job")
    dibs_client.lock("job").acquire()
"""


def over(*stores: str) -> list[str]:
    return [word for store in stores for word in ("--dibs-store", store)]


def collected(text: str) -> dict[str, set[str]]:
    """The tests of each store, from what --collect-only prints or from failures. pytest leaves out the name of a file
    that it was given itself and that is not under its root."""
    found: dict[str, set[str]] = {}
    for file, test, store in re.findall(r"(?:(test_\w+)\.py)?::(test_\w+)\[(?:[a-z]+-)??(\w+)", text):
        found.setdefault(store, set()).add(f"{file}::{test}")
    return found


def test_the_package_is_installed_from_its_wheel(acme: Acme, tmp_path: Path) -> None:
    seen = acme.run(
        "-c",
        "import sys, dibs; from pathlib import Path;"
        "print(Path(dibs.__file__).is_relative_to(sys.prefix), 'dibs.testing' in sys.modules, 'pytest' in sys.modules);"
        "import dibs.testing.contract.conftest as suite; print(Path(suite.__file__).is_relative_to(sys.prefix));"
        "dibs.connect('acmee://x')",
        cwd=tmp_path,
    )
    assert seen.stdout.split() == ["True", "False", "False", "True"], seen.stderr
    told = seen.stderr.splitlines()[-1]
    assert all(f"{scheme}://" in told for scheme in ("acme", "memory", "sqlite")), seen.stderr


def test_a_project_that_depends_on_dibs_has_the_fixtures(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "test_acme.py").write_text(FIXTURES)
    done = acme.pytest("-q", "-p", "no:randomly", cwd=tmp_path)
    assert re.search(r"1 failed, 2 passed", done.stdout), done.stdout + done.stderr
    assert "FAILED test_acme.py::test_an_overlap" in done.stdout
    assert '"job": two holders at once' in done.stdout


@pytest.mark.soak
@pytest.mark.parametrize(
    ("words", "least"),
    [
        pytest.param([*over(CAN_DO_LEAST, CAN_DO_ALL), *PARTS, "-k", "not aio"], 250, id="parts"),
        pytest.param(over(CAN_DO_ALL), 600, id="all"),
        pytest.param(over(CAN_DO_LEAST), 250, id="least"),
    ],
)
def test_stores_of_another_package_pass(acme: Acme, tmp_path: Path, words: list[str], least: int) -> None:
    done = acme.pytest("-q", "-n", "3", "--pyargs", SUITE, *words, cwd=tmp_path, timeout=580)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    summary = done.stdout.splitlines()[-1]
    passed = re.match(r"(\d+) passed in ", summary)
    assert passed, f"nothing may be skipped: {summary}"
    assert int(passed[1]) > least


def test_a_store_is_asked_for_what_it_can_do(acme: Acme, tmp_path: Path) -> None:
    words = ["-q", "--collect-only", "--pyargs", SUITE, *over(CAN_DO_ALL, CAN_DO_LEAST)]
    done = acme.pytest(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = collected(done.stdout)
    files = {store: {test.partition("::")[0] for test in tests} for store, tests in found.items()}
    assert found["plain"] < found["acme"]
    assert {
        "test_mutex::test_who_came_first_is_served_first",
        "test_mutex::test_a_try_that_fails_stands_in_nobodys_way",
    } <= found["acme"] - found["plain"]
    assert {"test_rwlock", "test_semaphore", "test_waiting", "test_latch"} <= files["acme"] - files["plain"]
    kinds = {kind for kind in ("lock", "rlock", "write", "semaphore") if f"inside[plain-aio-{kind}]" in done.stdout}
    assert kinds == {"lock", "rlock"}


def test_broken_stores_fail(acme: Acme, tmp_path: Path) -> None:
    stores = [CAN_DO_ALL, *(f"{name}=acme_locks.testing:{name}" for name in BROKEN)]
    telling = [f"{SUITE}.{part}" for part in ("test_queue", "test_queue_wakeup")]
    which = " or ".join(test for tests in BROKEN.values() for test in tests)
    done = acme.pytest(
        "-q", "--tb=no", "-rfE", "--pyargs", *telling, "-k", which, *over(*stores), cwd=tmp_path, timeout=580
    )
    assert done.returncode == 1, done.stdout + done.stderr
    failed = {store: {test.partition("::")[2] for test in tests} for store, tests in collected(done.stdout).items()}
    assert failed.keys() == BROKEN.keys()
    assert {store: expected & failed[store] for store, expected in BROKEN.items()} == BROKEN


def test_a_file_can_say_it_for_good_and_other_peoples_async_tests_are_left_alone(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --pyargs --dibs-store sqlite --dibs-store acme_locks.testing:fresh --dibs-part verbs\n"
        "testpaths = test_own.py dibs.testing.contract.test_rwlock\n"
    )
    (tmp_path / "test_own.py").write_text("async def test_own():\n    raise ZeroDivisionError\n")
    done = acme.pytest("-v", "-p", "no:randomly", "-k", "own or waiting_writer", cwd=tmp_path)
    assert collected(done.stdout).keys() >= {"sqlite", "acme_locks"}, done.stdout + done.stderr
    assert "async def functions are not natively supported" in done.stdout, done.stdout + done.stderr
    assert "1 failed, 4 passed" in done.stdout.splitlines()[-1]
