"""The stores on which processes are killed, stopped and forked.

    @each(*EVERY, names="scenario", cases=["one"], more=["another"])    # `more` on SQLite only
    def test_it(crew: Crew, scenario: str) -> None: ...

The kernel tells a SQLite client at once that another process died:
the default lease there is longer than any test. On a server a lease or a session must run out: the default lease is
short, and a process that must live through a test is a `crew.worker(STEADY)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.servers import shared, shared_mariadb, shared_postgresql, shared_redis
from process.children import LASTING, STEADY, Crew

QUICK = 1.5
"""A lease that runs out in a test that runs alone."""
SESSION = 1.5 * LASTING
"""For ZooKeeper: less than a quarter of a session may be certain at any moment."""


def _on_server(fresh: Callable[[Path], str], lease: float = LASTING, more: str = "") -> Callable[[Path], Crew]:
    return lambda directory: Crew(directory, fresh(directory) + more, lease=lease, lasting=lease)


CREWS: dict[str, Callable[[Path], Crew]] = {
    "sqlite": lambda directory: Crew(directory, lease=10 * STEADY, lasting=QUICK),
    "redis": _on_server(shared_redis.fresh),
    "zookeeper": _on_server(shared.fresh, SESSION),
    "postgresql": _on_server(shared_postgresql.fresh),
    "mysql": _on_server(shared_mariadb.fresh),
}
EVERY = tuple(CREWS)
CREWS["postgresql-session"] = _on_server(shared_postgresql.fresh, more="&mode=session")
CREWS["mysql-session"] = _on_server(shared_mariadb.fresh, more="&mode=session")
IN_EVERY_MODE = tuple(CREWS)


def each(
    *stores: str, names: str = "", cases: Sequence[Any] = ((),), more: Sequence[Any] = (), first: str = "sqlite"
) -> pytest.MarkDecorator:
    """Parametrises the crew and `names`. `first`: the stores that are in scripts/test."""
    rows = [(store, case) for store in stores for case in cases] + [("sqlite", case) for case in more]
    params = [
        pytest.param(
            store,
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if store in first.split() else pytest.mark.gate,
        )
        for store, case in rows
    ]
    return pytest.mark.parametrize(f"crew,{names}" if names else "crew", params, indirect=["crew"])
