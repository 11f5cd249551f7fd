"""dibs.testing as others have it: installed from the wheel, run over the stores of a throw-away package (acme/)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testing.throwaway import Acme, acme

__all__ = ["acme"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SUITE = "dibs.testing.contract"
CAN_DO_ALL, CAN_DO_LEAST = "acme=acme_locks.testing:fresh", "plain=acme_locks.testing:plain"
BY_SESSION = "session=acme_locks.testing:session"
BROKEN = {
    "leave": {"test_leave_is_idempotent", "test_a_leave_with_another_id_changes_nothing"},
    "renew": {"test_renew_never_revives", "test_renew_of_an_expired_waiter_is_refused_also_behind_others"},
    "wake": {"test_leave_wakes_exactly_the_next", "test_outsiders_are_told_to_look_when_nobody_in_line_is_freed"},
    "hasty": {"test_a_try_that_fails_stands_in_nobodys_way"},
}
"""Each broken store of the throw-away package, and what must tell."""
TELLING = ("test_seam", "test_seam_wake", "test_mutex::test_a_try_that_fails_stands_in_nobodys_way")


def over(*stores: str) -> list[str]:
    return [word for store in stores for word in ("--dibs-store", store)]


def collected(text: str) -> dict[str, set[str]]:
    """The tests of each store, from what --collect-only prints or from failures. pytest leaves out the name of a file
    that it was given itself and that is not under its root."""
    found: dict[str, set[str]] = {}
    for file, test, store in re.findall(r"(?:(test_\w+)\.py)?::(test_\w+)\[(\w+)", text):
        found.setdefault(store, set()).add(f"{file}::{test}")
    return found


def test_the_package_is_installed_from_its_wheel(acme: Acme, tmp_path: Path) -> None:
    seen = acme.run(
        "-c",
        "import sys, dibs; from pathlib import Path;"
        "print(Path(dibs.__file__).is_relative_to(sys.prefix), 'dibs.testing' in sys.modules, 'pytest' in sys.modules);"
        "import dibs.testing.contract.conftest as suite; print(Path(suite.__file__).is_relative_to(sys.prefix))",
        cwd=tmp_path,
    )
    assert seen.stdout.split() == ["True", "False", "False", "True"], seen.stderr


def test_a_scheme_that_nobody_has_is_told_with_those_of_other_packages(acme: Acme, tmp_path: Path) -> None:
    done = acme.run("-c", "import dibs; dibs.connect('acmee://x')", cwd=tmp_path)
    told = done.stderr.splitlines()[-1]
    assert all(f"{scheme}://" in told for scheme in ("acme", "memory", "sqlite")), done.stderr


def test_the_plugin_loads_nothing_that_nobody_asked_for(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "import sys\n\ndef test_own():\n"
        "    assert 'dibs.testing.plugin' in sys.modules\n"
        "    assert not {'dibs.aio', 'dibs.testing.kit', 'dibs.testing.contract', 'sqlite3'} & sys.modules.keys()\n"
    )
    done = acme.pytest("-q", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("store", "parts", "least"),
    [
        pytest.param(CAN_DO_LEAST, [SUITE, "-k", "not aio"], 150, id="least, one face"),
        pytest.param(
            CAN_DO_ALL, [f"{SUITE}.{part}" for part in (*TELLING, "test_cells_seam")], 60, id="all, the seams"
        ),
        pytest.param(
            BY_SESSION, [f"{SUITE}.{part}" for part in ("test_sessions", "test_time")], 120, id="by session, its times"
        ),
        pytest.param(CAN_DO_ALL, [SUITE], 800, id="all", marks=pytest.mark.soak),
        pytest.param(BY_SESSION, [SUITE], 800, id="by session", marks=pytest.mark.soak),
        pytest.param(CAN_DO_LEAST, [SUITE], 300, id="least", marks=pytest.mark.soak),
    ],
)
def test_a_store_of_another_package_passes(
    acme: Acme, tmp_path: Path, store: str, parts: list[str], least: int
) -> None:
    done = acme.pytest("-q", "-n", "4", "--pyargs", *parts, *over(store), cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    summary = done.stdout.splitlines()[-1]
    passed = re.match(r"(\d+) passed in ", summary)
    assert passed, f"nothing may be skipped: {summary}"
    assert int(passed[1]) > least


def test_what_a_store_cannot_do_it_is_not_asked_for(acme: Acme, tmp_path: Path) -> None:
    done = acme.pytest("-q", "--collect-only", "--pyargs", SUITE, *over(CAN_DO_ALL, CAN_DO_LEAST), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = collected(done.stdout)
    assert found["plain"] < found["acme"]
    left_out = found["acme"] - found["plain"]
    assert {
        "test_mutex::test_who_came_first_is_served_first",
        "test_mutex::test_a_try_that_fails_stands_in_nobodys_way",
    } <= left_out
    files = {test.partition("::")[0] for test in found["acme"]} - {test.partition("::")[0] for test in found["plain"]}
    assert {"test_rwlock", "test_semaphore", "test_waiting", "test_latch"} <= files
    assert "test_mutex::test_never_two_inside" in found["plain"]
    kinds = {
        kind
        for kind in ("lock", "rlock", "write", "semaphore")
        if f"test_never_two_inside[plain-aio-{kind}]" in done.stdout
    }
    assert kinds == {"lock", "rlock"}


def test_what_only_a_session_does_is_asked_of_those_who_have_one(acme: Acme, tmp_path: Path) -> None:
    done = acme.pytest("-q", "--collect-only", "--pyargs", SUITE, *over(CAN_DO_ALL, BY_SESSION), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = collected(done.stdout)
    files = {store: {test.partition("::")[0] for test in tests} for store, tests in found.items()}
    assert files["session"] - files["acme"] == {"test_sessions"}
    assert files["acme"] - files["session"] == {"test_waiting"}
    left_out = found["acme"] - found["session"]
    assert {"test_seam::test_renew_extends", "test_unfair::test_it_stands_in_no_line"} <= left_out
    assert "test_time::test_renewal_keeps_a_hold_beyond_its_lease" in found["session"]


def test_broken_stores_fail(acme: Acme, tmp_path: Path) -> None:
    stores = [CAN_DO_ALL, *(f"{name}=acme_locks.testing:{name}" for name in BROKEN)]
    telling = [f"{SUITE}.{test}" for test in TELLING]
    done = acme.pytest(
        "-q", "-n", "4", "--tb=no", "-rfE", "--pyargs", *telling, *over(*stores), cwd=tmp_path, timeout=280
    )
    assert done.returncode == 1, done.stdout + done.stderr
    failed = {store: {test.partition("::")[2] for test in tests} for store, tests in collected(done.stdout).items()}
    assert failed.keys() == BROKEN.keys()
    assert {store: expected & failed[store] for store, expected in BROKEN.items()} == BROKEN


def test_without_a_store_the_serverless_ones_are_tested(acme: Acme, tmp_path: Path) -> None:
    done = acme.pytest("-q", "--collect-only", "--pyargs", f"{SUITE}.test_seam", cwd=tmp_path)
    assert collected(done.stdout).keys() == {"memory", "sqlite"}, done.stdout + done.stderr


def test_a_file_can_say_it_for_good(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --pyargs --dibs-store sqlite --dibs-store acme_locks.testing:fresh\n"
        "testpaths = test_own.py dibs.testing.contract.test_seam\n"
    )
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    done = acme.pytest("-q", "--collect-only", cwd=tmp_path)
    assert collected(done.stdout).keys() == {"sqlite", "acme_locks"}, done.stdout + done.stderr
    assert "test_own.py::test_own" in done.stdout


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("acme_locks", "not a store"),
        ("acme_locks:", "not a store"),
        ("x=acme_locks.nowhere:fresh", "No module named 'acme_locks.nowhere'"),
        ("acme_locks.testing:nothing", "has no attribute 'nothing'"),
    ],
)
def test_what_names_no_store_is_said(acme: Acme, tmp_path: Path, store: str, said: str) -> None:
    done = acme.pytest("-q", "--pyargs", f"{SUITE}.test_seam", *over(store), cwd=tmp_path)
    assert done.returncode != 0
    told = [line for line in done.stdout.splitlines() + done.stderr.splitlines() if f"--dibs-store {store}: " in line]
    assert told, done.stdout + done.stderr
    assert said in told[0]


def test_other_peoples_async_tests_are_left_alone(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("async def test_own():\n    raise ZeroDivisionError\n")
    one = f"{SUITE}.test_mutex::test_other_names_do_not_exclude"
    done = acme.pytest("-q", "--pyargs", "test_own.py", one, *over(CAN_DO_ALL), cwd=tmp_path)
    assert "async def functions are not natively supported" in done.stdout, done.stdout + done.stderr
    assert "1 failed, 8 passed" in done.stdout.splitlines()[-1]
