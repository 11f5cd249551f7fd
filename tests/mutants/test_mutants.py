"""The list of mutants fits the source, and random ones are the same for the same seed."""

from __future__ import annotations

import pytest

from mutants.catalogue import SOURCE, Change, Mutant, named, parse
from mutants.copies import ROOT, is_path
from mutants.generator import randomly
from mutants.tiers import AREAS, FAST, GATE, TESTS, TIERS, area, stages
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


def test_code_that_occurs_twice_is_refused() -> None:
    (mutant,) = parse("= twice @ core/rule.py\n- self.id = id\n+ pass")
    with pytest.raises(ValueError, match="this is 2 times"):
        mutant.applied()


def test_a_pattern_is_found_in_its_function_however_it_is_formatted() -> None:
    source = "class A:\n    def f(self):\n        return g(\n            1,  # one\n            2,\n        )\n"
    other = "    def h(self):\n        return g(1, 2)\n"
    changed = Change("a.py", "A.f", "g(1, 2,)", "g()\npass").applied(source + other)
    assert changed == "class A:\n    def f(self):\n        return g()\n        pass\n" + other


def test_random_mutants_are_the_same_for_the_same_seed() -> None:
    drawn = randomly(200, 1)
    assert len({mutant.changes for mutant in drawn}) == 200
    assert drawn == randomly(200, 1)
    assert drawn[:5] != randomly(5, 2)
    for mutant in drawn:
        _check(mutant)


def test_every_mutant_has_tests_that_exist() -> None:
    for mutant in (*named(), *randomly(50)):
        assert {stage.tier for stage in stages(mutant.path, GATE)} >= {"full", "gate"}, mutant.path
        assert all((ROOT / path).exists() for path in mutant.first), mutant.name
    fast = tuple((TESTS / "fast.txt").read_text(encoding="utf-8").splitlines())
    for _, found in AREAS.values():
        for stage in found:
            paths = [word for word in stage.arguments if is_path(word)]
            assert all((ROOT / path).exists() for path in paths), stage
            assert stage.tier != FAST or all(path.startswith(fast) for path in paths), stage


def test_a_tier_includes_those_before_it() -> None:
    for path in ("core/rule.py", "backends/redis/lua/join.lua"):
        found = [stage.tier for stage in stages(path, GATE, ("tests/store",))]
        assert found == sorted(found, key=TIERS.index), area(path)
        assert len(stages(path, "full", ("tests/store",))) == len([tier for tier in found if tier != GATE])
