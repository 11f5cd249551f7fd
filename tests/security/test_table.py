"""The table of attacks is whole: every case that counts for a store or a part is shown there, by a test that runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache

import pytest

from security.cases import EVERY, PARTS, ROOT, TRAITS, Case
from security.stores import attacked
from security.table import TABLE

LONGEST = 200
"""Seconds that collecting may take beside other programs."""
pytestmark = pytest.mark.timeout(LONGEST + 40)


@pytest.fixture
def stores(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Those that this run attacks."""
    return tuple(attacked(request.config))


def where(file: str) -> str:
    """The suite that every store runs is published with the package; the others are not."""
    return f"src/dibs/testing/{file}.py" if file.startswith("contract/") else f"tests/{file}.py"


@cache
def collected() -> list[tuple[str, str, str]]:
    """What pytest really collects in the files that the table names: file, test, parameters."""
    files = sorted({where(test.partition(" ")[0]) for case in TABLE for test in case.tests()})
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "", *files]
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}  # nor is it one
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pattern = r"(?m)^(?:tests|src/dibs/testing)/([^\s\[]+)\.py::(\w+)(\[.*\])?$"
    return [(file, test, parameters) for file, test, parameters in re.findall(pattern, done.stdout)]


@cache
def parameters_of(reference: str) -> frozenset[str]:
    file, _, word = reference.partition(" ")
    return frozenset(given for there, test, given in collected() if there == file and word in test)


def runs_on(test: str, store: str, stores: tuple[str, ...]) -> bool:
    """One that has stores among its parameters must have this one, too; one that has none concerns them all."""
    parts = [set(re.split(r"[\[\]-]", parameters)) for parameters in parameters_of(test)]
    over_stores = any(part & set(stores) for part in parts)
    return not over_stores or any(store in part for part in parts)


def test_the_table_has_every_number_once() -> None:
    assert [case.number for case in TABLE] == list(range(1, 61))


def test_what_a_store_must_withstand_is_known(stores: tuple[str, ...]) -> None:
    unknown = set(stores) - TRAITS.keys()
    assert not unknown, f"say in security/cases.py what {unknown} have to withstand"


def test_every_case_is_shown(stores: tuple[str, ...]) -> None:
    """One test for the whole table: collecting costs a second."""
    missing = [f"{one.number}: no test is {test}" for one in TABLE for test in one.tests() if not parameters_of(test)]
    assert not missing
    for case in TABLE:
        missing += unshown(case, stores, stores)
    assert not missing, "\n".join(missing)


def unshown(case: Case, asked: tuple[str, ...], stores: tuple[str, ...], parts: tuple[str, ...] = ()) -> list[str]:
    """Where a case counts and nobody shows it. A store that is not there yet will have what runs over all of them;
    `parts`: as if these were there."""
    there = [part for part, is_there in PARTS.items() if part in parts or is_there()]
    if case.counts_for in PARTS:
        wanted = [case.counts_for] if case.counts_for in there else []
        return [f"{case.number} ({case.attack}): not shown for {part}" for part in wanted if not case.shown.get(part)]
    return [
        f"{case.number} ({case.attack}): not shown on {store}"
        for store in asked
        if case.applies_to(store)
        and not any(
            store not in stores or runs_on(test, store, stores)
            for test in (*case.shown.get(store, ()), *case.shown.get(EVERY, ()))
        )
    ]


def test_a_store_that_is_added_must_show_its_cases(stores: tuple[str, ...]) -> None:
    """What each later store will be asked for, besides what the contract's worlds do to it by themselves."""
    asked = {
        store: [case.number for case in TABLE if unshown(case, (store,), stores)]
        for store in TRAITS
        if store not in stores
    }
    assert {7, 23, 24, 57} <= set(asked["redis+cluster"])
    assert not {31, 36} & set(asked["redis+cluster"]), "files are no business of a server's"


def test_a_part_that_is_added_must_show_its_cases() -> None:
    wanted = [case.number for case in TABLE if unshown(case, (), (), tuple(PARTS))]
    assert wanted == [14, *range(45, 53)], "what the dashboard will be asked for"
