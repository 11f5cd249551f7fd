"""The table of attacks is whole: every case that counts for a store or a part is shown there, by a test that exists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from security.cases import DASHBOARD, EVERY, PARTS, ROOT, TRAITS, Case
from security.stores import ATTACKED
from security.table import TABLE


@cache
def names_in(file: str) -> tuple[str, ...]:
    """The suite that every store runs is published with the package; the others are not."""
    path = ROOT / ("src/dibs/testing" if file.startswith("contract/") else "tests") / f"{file}.py"
    return tuple(re.findall(r"(?m)^(?:async )?def (test_\w+)", path.read_text())) if path.exists() else ()


def exists(reference: str) -> bool:
    file, _, word = reference.partition(" ")
    return any(word in test for test in names_in(file))


def test_the_table_has_every_number_once() -> None:
    assert [case.number for case in TABLE] == list(range(1, 61))


def test_what_a_store_must_withstand_is_known() -> None:
    unknown = set(ATTACKED) - TRAITS.keys()
    assert not unknown, f"say in security/cases.py what {unknown} have to withstand"


def test_every_case_is_shown() -> None:
    missing = [f"{case.number}: no test is {test}" for case in TABLE for test in case.tests() if not exists(test)]
    for case in TABLE:
        missing += unshown(case, ATTACKED)
    assert not missing, "\n".join(missing)


def unshown(case: Case, stores: Iterable[str]) -> list[str]:
    """Where a case counts and nobody shows it."""
    if case.counts_for in PARTS:
        wanted = [case.counts_for] if PARTS[case.counts_for]() else []
        return [f"{case.number} ({case.attack}): not shown for {part}" for part in wanted if not case.shown.get(part)]
    wanted = [store for store in stores if case.applies_to(store) and not case.shown.get(store)]
    return [] if case.shown.get(EVERY) else [f"{case.number} ({case.attack}): not shown on {one}" for one in wanted]


def test_a_store_or_a_part_that_is_added_must_show_its_cases() -> None:
    asked = {case.number for case in TABLE if unshown(case, ("redis+cluster",))}
    assert {7, 23, 24, 57} <= asked
    assert not {31, 36} & asked, "files are no business of a server's"
    of_the_dashboard = [one for one in TABLE if one.counts_for == DASHBOARD]
    assert [one.number for one in of_the_dashboard] == [14, *range(45, 53)]
    assert all(unshown(replace(one, shown={}), ()) for one in of_the_dashboard)
