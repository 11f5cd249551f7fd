"""How many requests waiting costs: none while it lasts, and a release wakes one waiter of each client."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from lab.redisson import PATIENCE
from lab.servers.supervisor import until
from store.redis.redisson.peers import LOCK, PERMITS, SEMAPHORE, WRITE, Kind, Raw
from store.sides import Python

pytestmark = pytest.mark.slow
MANY = 20


@pytest.mark.parametrize("kind", [LOCK, WRITE, SEMAPHORE, PERMITS], ids=str)
def test_a_release_wakes_one_waiter_of_a_client(here: Python, own: Raw, name: str, kind: Kind) -> None:
    client, other = here.client(), here.client()
    hold = here.take(kind.ours(other, name))
    before = _scripts(own)
    waiting: list[Future[Any]] = [here.begin(lambda: kind.ours(client, name).acquire()) for _ in range(MANY)]
    until(lambda: _scripts(own) == before + 2 * MANY, PATIENCE, "each has tried, listened, and tried again")
    assert own.listening(kind.channel % name) == 1
    for turn in range(MANY):
        before = _scripts(own)
        here.do(hold.release)
        until(lambda: any(one.done() for one in waiting), PATIENCE, "the next one has it")
        (done,) = [one for one in waiting if one.done()]
        waiting.remove(done)
        hold = done.result()
        # The leave, and the join of the next one. Kinds with several holders wake one more, who finds it busy.
        most = 2 if kind is LOCK or turn == MANY - 1 else 3
        assert 2 <= _scripts(own) - before <= most
    here.do(hold.release)


def _scripts(raw: Raw) -> int:
    return int(raw.client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])
