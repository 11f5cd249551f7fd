"""The stores on which processes are killed, stopped and forked.

    @every_store                                            # or @usual_stores
    def test_it(crew: Crew) -> None: ...

    @on_servers("scenario", ["one"], more=["another"])      # the first on every store, the others on SQLite only
    def test_it(crew: Crew, scenario: str) -> None: ...

The kernel tells a SQLite client at once that another process died. Elsewhere a lease must run out, or a session, whose
end the server counts in whole ticks: the default lease there is short, and a process that must live through a test on a
noisy machine is a `crew.worker(STEADY)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lab.servers import shared, shared_mariadb, shared_postgresql, shared_redis
from process.children import LASTING, Crew

SLACK = 25.0
"""For busy cores. A lease of STEADY would outlast it."""


def _zookeeper(directory: Path) -> Crew:
    lease = 1.5 * LASTING  # of a session's, less than a quarter may be certain at any moment
    noticed = lease + shared.TICK_MS / 1000 + SLACK
    return Crew(directory, shared.fresh(directory), lease=lease, noticed=noticed, lasting=lease)


def _redis(directory: Path) -> Crew:
    return Crew(directory, shared_redis.fresh(directory), lease=LASTING, noticed=LASTING + SLACK)


def _postgresql(directory: Path) -> Crew:
    return Crew(directory, shared_postgresql.fresh(directory), lease=LASTING, noticed=LASTING + SLACK)


def _mysql(directory: Path) -> Crew:
    return Crew(directory, shared_mariadb.fresh(directory), lease=LASTING, noticed=LASTING + SLACK)


GROUNDS: dict[str, Callable[[Path], Crew]] = {
    "sqlite": Crew,
    "zookeeper": _zookeeper,
    "redis": _redis,
    "postgresql": _postgresql,
    "mysql": _mysql,
}
SERVERS = [store for store in GROUNDS if store != "sqlite"]
SELDOM = ("postgresql", "mysql")
"""For the soak only where the end or the stop of a process is the business of the core, and of the transport that these
two share with Redis. tests/store/faults/test_process.py kills and stops processes on all of them in every run."""
every_store = pytest.mark.parametrize("crew", GROUNDS, indirect=True)


def _marked(store: str, *values: object, seldom: Sequence[str]) -> object:
    return pytest.param(store, *values, marks=[pytest.mark.soak] if store in seldom else [])


usual_stores = pytest.mark.parametrize("crew", [_marked(store, seldom=SELDOM) for store in GROUNDS], indirect=True)
"""As `every_store`, with those of SELDOM in the soak only; `usual_servers` leaves out SQLite."""
usual_servers = pytest.mark.parametrize("crew", [_marked(store, seldom=SELDOM) for store in SERVERS], indirect=True)


def on_servers(
    names: str, everywhere: Sequence[object], *, more: Sequence[object] = (), seldom: Sequence[str] = ()
) -> pytest.MarkDecorator:
    """Parametrises the crew and `names`: `everywhere` on every store, `more` on SQLite only. Stores that are `seldom`
    are for the soak."""
    rows = [(store, row) for store in GROUNDS for row in everywhere] + [("sqlite", row) for row in more]
    flat = [_marked(store, *(row if isinstance(row, tuple) else (row,)), seldom=seldom) for store, row in rows]
    return pytest.mark.parametrize(f"crew,{names}", flat, indirect=["crew"])
