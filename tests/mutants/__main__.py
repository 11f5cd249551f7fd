"""Take safeguards out, one at a time, in a copy of the tree, and see which test notices.

    PYTHONPATH=tests python -m mutants                         every named mutant, all tests that should notice it
    PYTHONPATH=tests python -m mutants --tier fast --area core
    PYTHONPATH=tests python -m mutants --random 30 --seed 5 --only random
    PYTHONPATH=tests python -m mutants --against ../old        the same mutants, the tests of another checkout

Prints a line for each, and how many each tier killed. Exits with 1 if a named one survived that is expected to be
killed. With `--json FILE` a run that was ended goes on where it was: mutants in the file are skipped.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import NamedTuple

from mutants.catalogue import Mutant, named
from mutants.copies import NOTHING, Copy, Limits, is_path
from mutants.generator import SEED, randomly
from mutants.tiers import GATE, TIERS, Stage, area, stages

KILLED, SURVIVED, INVALID = "killed", "survived", "invalid"
_TRIES = 3
"""How many failing tests of a stage are run again, at most."""


class Verdict(NamedTuple):
    name: str
    path: str
    area: str
    outcome: str
    tier: str
    """The first one that kills it."""
    by: str
    seconds: float
    is_named: bool
    expected: bool
    """To be killed."""


class Bench:
    """The copies of the tree, and which tests pass in them without a mutant."""

    def __init__(self, jobs: int, against: Path | None, limits: Limits) -> None:
        self._copies = [Copy(against, limits) for _ in range(jobs)]
        self._free: SimpleQueue[Copy] = SimpleQueue()
        for copy in self._copies:
            self._free.put(copy)
        self._green: dict[str, bool] = {}

    def judge(self, mutant: Mutant, tier: str, is_named: bool) -> Verdict:
        began, copy = monotonic(), self._free.get()
        outcome, level, by = SURVIVED, tier, ""
        try:
            by = copy.write(mutant)
            if by:
                outcome = INVALID
            for stage in () if by else stages(mutant.path, tier, mutant.first):
                by = self._killer(copy, stage, mutant)
                if by:
                    outcome, level = INVALID if by.startswith("pytest ended") else KILLED, stage.tier
                    break
        finally:
            copy.restore(mutant)
            self._free.put(copy)
        seconds = round(monotonic() - began, 1)
        where, expected = area(mutant.path), not mutant.survives
        return Verdict(mutant.name, mutant.path, where, outcome, level, by, seconds, is_named, expected)

    def _killer(self, copy: Copy, stage: Stage, mutant: Mutant) -> str:
        """The test that fails: again when it runs alone, and not without the mutant. Empty if there is none."""
        doubtful: list[str] = []
        options = [word for word in stage.arguments if not is_path(word)]
        for _ in range(_TRIES):
            found = copy.run(stage, "-x", *(word for test in doubtful for word in ("--deselect", test)))
            if found.trouble == NOTHING or not (found.failed or found.hung or found.trouble):
                return ""
            if found.trouble:
                return found.trouble
            if not found.failed:
                return "hung: the whole run" if self._is_green(copy, stage, str(stage.arguments), mutant) else ""
            test = found.failed[0]
            alone = stage._replace(arguments=(*options, test), workers=0)
            if (found.hung or copy.run(alone).failed) and self._is_green(copy, alone, test, mutant):
                return f"hung: {test}" if found.hung else test
            doubtful.append(test)
        _say(f"fails now and then, whatever is changed, or only beside others: {', '.join(doubtful)}")
        return ""

    def _is_green(self, copy: Copy, alone: Stage, test: str, mutant: Mutant) -> bool:
        """Each test is asked once."""
        if test not in self._green:
            copy.restore(mutant)
            found = copy.run(alone)
            self._green[test] = not (found.failed or found.hung or found.trouble)
            copy.write(mutant)
        return self._green[test]

    def close(self) -> None:
        for copy in self._copies:
            copy.stop()
            copy.remove()


def _known(file: Path | None, names: set[str]) -> list[Verdict]:
    """The verdicts of an earlier run."""
    if file is None or not file.exists():
        return []
    found = [Verdict(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    return [verdict for verdict in found if verdict.name in names]


def _say(text: str) -> None:
    print(text, flush=True)


def _told(verdict: Verdict) -> str:
    how = f"by {verdict.by}" if verdict.by else "expected" if not verdict.expected else ""
    return f"{verdict.outcome:8} {verdict.tier:4} {verdict.seconds:6.0f} s  {verdict.name}  [{verdict.path}]  {how}"


def _summary(verdicts: list[Verdict]) -> Iterator[str]:
    valid = [verdict for verdict in verdicts if verdict.outcome != INVALID]
    for where in sorted({verdict.area for verdict in valid}):
        here = [verdict for verdict in valid if verdict.area == where]
        count = Counter(verdict.tier for verdict in here if verdict.outcome == KILLED)
        kills = ", ".join(f"{tier} {count[tier]}" for tier in TIERS)
        yield f"{where:12} {len(here):3} mutants, killed by {kills}"
    killed = sum(verdict.outcome == KILLED for verdict in valid)
    yield f"{'all':12} {len(valid):3} mutants, {killed} killed, {len(verdicts) - len(valid)} invalid"


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.split("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="names and files, and no more")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="those whose name contains it")
    parser.add_argument(
        "--area", help="those of one area: core, verbs, sqlite, redis, redisson, postgresql, mysql, stores"
    )
    parser.add_argument("--tier", choices=TIERS, default=GATE, help="each includes those before it")
    parser.add_argument("--random", type=int, default=0, metavar="K", help="as many random ones besides")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--against", type=Path, help="a checkout whose tests are run instead of these")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=60, help="seconds for one test; longer is a hang")
    parser.add_argument("--limit", type=int, default=1200, help="the same for one run of pytest")
    parser.add_argument("--json", type=Path, help="a file to add a line for each to; those in it are skipped")
    given = parser.parse_args()
    listed = named()
    chosen = [
        mutant
        for mutant in (*listed, *randomly(given.random, given.seed))
        if (not given.only or any(text in mutant.name for text in given.only))
        and given.area in (None, area(mutant.path))
        and stages(mutant.path, given.tier)
    ]
    if given.list:
        _say("\n".join(f"{area(mutant.path):12} {mutant.name}  [{mutant.path}]" for mutant in chosen))
        return 0
    bench = Bench(given.jobs, given.against, Limits(given.timeout, given.limit))
    verdicts = _known(given.json, {mutant.name for mutant in chosen})
    chosen = [mutant for mutant in chosen if mutant.name not in {verdict.name for verdict in verdicts}]
    pool = ThreadPoolExecutor(given.jobs)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        judged = [pool.submit(bench.judge, mutant, given.tier, mutant in listed) for mutant in chosen]
        for future in as_completed(judged):
            verdicts.append(future.result())
            _say(_told(verdicts[-1]))
            if given.json:
                with given.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(verdicts[-1]._asdict()) + "\n")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        bench.close()
    _say("\n".join(_summary(verdicts)))
    return int(any(one.is_named and one.expected and one.outcome != KILLED for one in verdicts))


if __name__ == "__main__":
    sys.exit(main())
