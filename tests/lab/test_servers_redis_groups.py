"""Redis in company: copies arrive, fail-over happens, and what they advertise is what they were told to."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from lab.faults import Refuse
from lab.servers import certificates
from lab.servers.programs import Refused, Silent, require
from lab.servers.redis import Redis
from lab.servers.redis_groups import cluster, in_step, independent, primary_seen_by, replicated, role
from lab.servers.supervisor import Server, joint_url, until
from lab.servers.ways import Ways

pytestmark = pytest.mark.timeout(150)  # several elections, on a machine that others use too


@pytest.fixture(autouse=True)
def _installed() -> None:
    require("redis")


def reads(node: Server, key: str, value: str) -> None:
    until(lambda: node.ask("GET", key) == value, what=f"{key} on {node!r}")


def test_replicas() -> None:
    with replicated(password="open-sesame", persist="always") as group:
        assert [role(node) for node in (group.primary, *group.replicas)] == ["master", "slave", "slave"]
        group.primary.ask("SET", "a", "1")
        for replica in group.replicas:
            reads(replica, "a", "1")
            with pytest.raises(Refused, match="READONLY"):
                replica.ask("SET", "a", "2")
        group.primary.stop()
        with pytest.raises(Silent):
            group.primary.ask("GET", "a", within=0.3)
        assert group.replicas[0].ask("GET", "a") == "1"
        group.primary.resume()
        assert group.primary.ask("GET", "a") == "1"
        group.replicas[0].restart(wipe=True)
        reads(group.replicas[0], "a", "1")


def test_a_replica_by_tls(tmp_path: Path) -> None:
    require("openssl")
    tls = certificates.make(tmp_path)
    with replicated(replicas=1, tls=tls, client_certificates=True) as group:
        group.primary.ask("SET", "a", "1")
        reads(group.replicas[0], "a", "1")


def test_the_way_of_the_replicas_can_be_cut() -> None:
    with Ways() as ways, replicated(replicas=1, link=ways) as group:
        way = ways.to(group.primary.port)
        (replica,) = group.replicas
        group.primary.ask("SET", "a", "1")
        reads(replica, "a", "1")
        way.add(Refuse())
        way.reset()
        until(lambda: "master_link_status:down" in replica.ask("INFO", "replication"), what="the link is down")
        group.primary.ask("SET", "a", "2")
        assert replica.ask("GET", "a") == "1"
        way.heal()
        reads(replica, "a", "2")


@pytest.mark.slow
def test_sentinels_promote_and_send_clients_where_they_were_told() -> None:
    with Ways() as ways, replicated(sentinels=3, down_after_ms=2000, through=ways) as group:
        group.primary.ask("SET", "a", "1")
        for replica in group.replicas:
            reads(replica, "a", "1")
        assert {primary_seen_by(watcher) for watcher in group.sentinels} == {ways(group.primary.port)}
        group.primary.kill()
        routes = {ways(replica.port): replica for replica in group.replicas}
        promoted = until(lambda: routes.get(primary_seen_by(group.sentinels[0])), what="a new primary")
        until(lambda: role(promoted) == "master", what="promoted")
        assert promoted.ask("GET", "a") == "1"
        until(lambda: promoted.ask("SET", "a", "2") == "OK", what="it takes writes")
        (other,) = (replica for replica in group.replicas if replica is not promoted)
        until(lambda: in_step(promoted, (other,)), what="the other replica follows")
        reads(other, "a", "2")
        assert ways.used(promoted.port)


def serving(nodes: tuple[Server, ...], key: str) -> Server:
    """The node of a cluster that answers for a key; waits until one does."""

    def answers(node: Server) -> bool:
        try:
            return bool(node.ask("GET", key))
        except Refused:
            return False

    node = until(lambda: next(filter(answers, nodes), None), what=f"somebody serves {key}")
    assert isinstance(node, Server)
    return node


@pytest.mark.slow
def test_cluster_promotes_and_advertises_what_it_was_told() -> None:
    with Ways() as ways, cluster(persist="always", through=ways) as nodes:
        assert len(nodes) == 6
        advertised = {ways(node.port) for node in nodes}
        slots = nodes[0].ask("CLUSTER", "SLOTS").split()
        assert {int(port) for host, port in pairwise(slots) if host == "127.0.0.1"} == advertised
        first = nodes[0].kind
        assert isinstance(first, Redis)
        assert first.cli("-c", "SET", "a", "1") == "OK"
        until(lambda: sum(int(node.ask("DBSIZE")) for node in nodes) == 2, what="the copy arrived")
        owner = serving(nodes, "a")
        others = tuple(node for node in nodes if node is not owner)
        for node in others:
            with pytest.raises(Refused, match="MOVED"):
                node.ask("GET", "a")
        owner.kill()
        promoted = serving(others, "a")
        assert promoted.ask("GET", "a") == "1"
        owner.restart()
        until(lambda: role(owner) == "slave", what="the old primary follows")
        assert all(ways.used(port) for node in nodes for port in node.kind.ports[1:]), "the bus has its own ways"


def test_five_that_know_nothing_of_each_other() -> None:
    with independent(5, persist="always") as nodes:
        for number, node in enumerate(nodes):
            node.ask("SET", "a", str(number))
        assert [node.ask("GET", "a") for node in nodes] == ["0", "1", "2", "3", "4"]
        assert joint_url("quorum+redis", nodes[:2], "/0", lambda port: 1) == "quorum+redis://127.0.0.1:1,127.0.0.1:1/0"
        assert joint_url("quorum+redis", nodes[:1]) == f"quorum+redis://127.0.0.1:{nodes[0].port}"
        nodes[0].stop()
        nodes[1].kill()
        assert [node.ask("GET", "a") for node in nodes[2:]] == ["2", "3", "4"]
        nodes[0].resume()
        assert nodes[0].ask("GET", "a") == "0"
        assert nodes[1].restart().ask("GET", "a") == "1"
        assert nodes[2].restart(wipe=True).ask("GET", "a") == ""
