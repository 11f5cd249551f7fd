"""What is asked by a plain command, and not by a script, follows its key to another node too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.crc import key_slot

import dibs
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.redis_groups import cluster, role
from lab.servers.supervisor import Server, until
from store.redis.faulty import slots

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]
Nodes = tuple[Server, ...]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    require("redis")
    with cluster() as made:
        yield made


def url(nodes: Nodes) -> str:
    return "redis+cluster://" + ",".join(f"{ports.HOST}:{node.port}" for node in nodes)


@pytest.mark.parametrize("space", ["cell", "latch"])
def test_a_key_moves_to_another_node(nodes: Nodes, space: str) -> None:
    """While its slot is on its way it is read where it is; then there, by who was sent there and who was not."""
    key = f"dibs:moving|{space}"
    slot = key_slot(key.encode())
    primaries = [node for node in nodes if role(node) == "master"]
    source = next(node for node in primaries if slot in slots(node))
    target = next(node for node in primaries if node is not source)
    with dibs.connect(url(nodes), retry=5) as client:
        cell, latch = client.cell("moving"), client.latch("moving")
        if space == "cell":
            cell.set(b"1", 0)
        else:
            latch.arm(3)

        def seen() -> object:
            return cell.get() if space == "cell" else latch.count()

        before = seen()
        owner = target.ask("CLUSTER", "MYID")
        target.ask("CLUSTER", "SETSLOT", str(slot), "IMPORTING", source.ask("CLUSTER", "MYID"))
        source.ask("CLUSTER", "SETSLOT", str(slot), "MIGRATING", owner)
        source.ask("MIGRATE", ports.HOST, str(target.port), key, "0", "5000")
        assert seen() == before, "ASK"
        for node in (target, *(node for node in primaries if node is not target)):
            node.ask("CLUSTER", "SETSLOT", str(slot), "NODE", owner)
        assert seen() == before, "MOVED"
        if space == "cell":
            assert cell.set(b"2", 1) == 2
        else:
            latch.count_down()
        assert seen() != before


def test_a_cell_is_read_after_an_orderly_fail_over(nodes: Nodes) -> None:
    """Nobody is down: each old primary lives on as a replica, and says where the keys are now."""
    with dibs.connect(url(nodes), retry=5) as client:
        cells = [client.cell(f"c{number}") for number in range(9)]
        latches = [client.latch(f"l{number}") for number in range(9)]
        assert [cell.set(b"1", 0) for cell in cells] == [1] * 9
        for latch in latches:
            latch.arm(2)
        for replica in nodes[3:]:
            replica.ask("CLUSTER", "FAILOVER")
        until(lambda: [role(node) for node in nodes] == ["slave"] * 3 + ["master"] * 3, what="they took over")
        assert [cell.get() for cell in cells] == [(b"1", 1)] * 9
        assert [latch.count() for latch in latches] == [2] * 9
