"""The events and log records of a store that stops answering, on a real server."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

import dibs
import dibs.aio
from dibs.testing.contract.seats import until
from lab.servers.lone import REDIS, lone

pytestmark = pytest.mark.gate


def test_a_store_that_stops_is_told_once_and_again_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dibs.store")
    seen: list[dibs.Event] = []

    def whats(what: str) -> int:
        return sum(event.what == what for event in seen)

    with lone(REDIS) as server, dibs.connect(server.url, observer=seen.append) as client:
        held = client.lock("a", lease=6).acquire()
        assert held is not None
        server.stop()
        late = until(
            lambda: next((event for event in list(seen) if event.what == "renewal_late" and event.error), None)
        )
        for _ in range(2):
            with pytest.raises(dibs.StoreUnavailable):
                client.lock("b").acquire(timeout=0)
        assert whats("store_unreachable") == 1
        server.mend()
        with suppress(dibs.LockLost):
            held.release()
        with client.lock("c"):
            until(lambda: whats("store_back"))
    assert (late.name, late.backend) == ("a", "redis")
    assert isinstance(late.error, dibs.StoreUnavailable)
    assert [event.what for event in seen if event.name == "b"] == ["failed", "failed"]
    back = next(event for event in seen if event.what == "store_back")
    assert back.waited > 0
    named = [vars(record)["event_name"] for record in caplog.records if record.name == "dibs.store"]
    assert named[:2] == ["store_unreachable", "store_back"]
