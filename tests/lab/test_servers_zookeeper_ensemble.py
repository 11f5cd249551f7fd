"""An ensemble that is harmed and mended, and the trap that a silenced node is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.servers.programs import require
from lab.servers.supervisor import until
from lab.servers.zookeeper_ensemble import Ensemble, proxied, standing
from lab.servers.zookeeper_session import Believer, Session
from lab.surface import clock

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("zookeeper-ensemble"), pytest.mark.timeout(150)]
TIMEOUT = 1.2


@pytest.fixture(scope="module")
def ensemble() -> Iterator[Ensemble]:
    require("zookeeper")
    with proxied() as made:
        yield made


def test_a_silenced_follower_answers_pings_when_its_sessions_have_ended(ensemble: Ensemble) -> None:
    node, first = ensemble.followers()[0], ensemble.leader()
    with Believer(node.port, TIMEOUT) as believer:
        believer.session.create("/ours", b"", ephemeral=True)
        until(lambda: believer.deadline, what="a ping was answered")
        assert "node /ours" in standing(first.ask("dump"))
        before = ensemble.lost()
        ensemble.silence(node)
        assert not ensemble.whole(), "something is done to it, though nobody has noticed yet"
        until(lambda: "node /ours" not in standing(first.ask("dump")), what="the leader ends the session")
        gone = clock()
    assert believer.deadline > gone, "it believed to live"
    assert ensemble.lost() > before
    ensemble.await_out_of_service(node)
    ensemble.mend()
    ensemble.settle()
    assert ensemble.left(within=10) == []


@pytest.mark.parametrize("harm", ["kill", "stop", "silence", "cut_off"])
def test_the_leader_is_harmed_and_mended(ensemble: Ensemble, harm: str) -> None:
    first = ensemble.leader()
    getattr(ensemble, harm)(first)
    assert not ensemble.whole()
    until(lambda: ensemble.leader() is not first, what="another leads")
    ensemble.mend()
    ensemble.settle()
    with Session(first.port) as session:
        session.create(f"/{harm}", b"1", ephemeral=True)
        assert f"node /{harm}" in ensemble.left(within=0)
        assert any(thing.startswith("session 0x") for thing in ensemble.left(within=0))
    assert ensemble.left(within=10) == []
