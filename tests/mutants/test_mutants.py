"""The list of mutants fits the source, and random ones are the same for the same seed."""

from __future__ import annotations

import pytest

from mutants.catalogue import SOURCE, Mutant, named, parse
from mutants.copies import ROOT, is_path
from mutants.generator import randomly
from mutants.tiers import AREAS, FULL, TESTS, stages
from sim.broken import BROKEN
from sim.broken_cells import CELLS_BROKEN


def _check(mutant: Mutant) -> None:
    for path, text in mutant.applied().items():
        assert text != (SOURCE / path).read_text(encoding="utf-8"), mutant.name
        if path.endswith(".py"):
            compile(text, path, "exec", dont_inherit=True)


def test_every_named_mutant_still_applies() -> None:
    for mutant in named():
        _check(mutant)


def test_every_safeguard_of_the_simulator_has_a_mutant() -> None:
    names = [mutant.name for mutant in named()]
    assert {*BROKEN, *CELLS_BROKEN} <= set(names)
    assert len(set(names)) == len(names)


def test_lines_that_stand_twice_are_refused() -> None:
    (mutant,) = parse("= twice @ core/rule.py\n-        self.id = id\n+        pass")
    with pytest.raises(ValueError, match="stand 2 times"):
        mutant.applied()


@pytest.mark.parametrize("seed", [1, 2])
def test_random_mutants_are_the_same_for_the_same_seed(seed: int) -> None:
    drawn = randomly(200, seed)
    assert len({mutant.changes for mutant in drawn}) == 200
    assert drawn == randomly(200, seed)
    assert drawn[:5] != randomly(5, seed + 1)
    for mutant in drawn:
        _check(mutant)


def test_every_mutant_has_tests_that_exist() -> None:
    for mutant in (*named(), *randomly(50)):
        assert stages(mutant.path, FULL), mutant.path
        assert all((ROOT / path).exists() for path in mutant.first), mutant.name
    fast = tuple((TESTS / "fast.txt").read_text(encoding="utf-8").splitlines())
    for _, found in AREAS.values():
        for stage in found:
            paths = [word for word in stage.arguments if is_path(word)]
            assert all((ROOT / path).exists() for path in paths), stage
            assert stage.tier == FULL or all(path.startswith(fast) for path in paths), stage
