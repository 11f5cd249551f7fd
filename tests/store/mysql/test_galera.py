"""Galera clusters: a node that is alone is a server like others, and more of them are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import dibs
from dibs.testing.contract.seats import until
from lab.servers import ports
from lab.servers.mariadb import MariaDB
from lab.servers.programs import require
from lab.servers.supervisor import Server

pytestmark = pytest.mark.gate

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
"""In a name space of its own: the disk is gone with the server."""


@pytest.fixture
def nodes() -> Iterator[Callable[[], Server]]:
    """Starts one node after the other of a cluster; the later ones take their data as it is."""
    require("mariadb")
    if not PROVIDER.exists():
        pytest.skip("galera-4 is not installed")
    groups: list[int] = []
    with ExitStack() as stack:

        def reserved() -> int:
            port = ports.reserve()
            stack.callback(ports.release, port)
            return port

        def start() -> Server:
            group, seeds = reserved(), ",".join(f"{ports.HOST}:{port}" for port in groups)
            options = f"gmcast.listen_addr=tcp://{ports.HOST}:{group};ist.recv_addr={ports.HOST}:{reserved()}"
            kind = MariaDB(
                "--wsrep-on=ON", f"--wsrep-provider={PROVIDER}", f"--wsrep-cluster-address=gcomm://{seeds}",
                f"--wsrep-node-address={ports.HOST}", f"--wsrep-provider-options={options};gcache.size=4M",
                "--wsrep-sst-method=skip", "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
            )  # fmt: skip
            groups.append(group)
            return stack.enter_context(Server(kind))

        yield start


def test_galera_with_more_than_one_node_is_refused(nodes: Callable[[], Server]) -> None:
    """When connecting, with the reason. One that is alone is a server like others; one that has not joined yet is asked
    again."""
    first = nodes()
    with closing(dibs.connect(first.url())) as client, client.lock("a", timeout=10) as hold:
        hold.check()
    second = nodes()
    until(lambda: first.ask("SHOW STATUS LIKE 'wsrep_cluster_size'").endswith("2"))
    with closing(dibs.connect(first.url())) as client, pytest.raises(dibs.StoreError, match="Galera") as caught:
        client.lock("a").acquire(timeout=30)
    assert not isinstance(caught.value, dibs.StoreUnavailable)
    with (
        closing(dibs.connect(second.url())) as client,
        pytest.raises(dibs.StoreUnavailable, match="joined its cluster"),
    ):
        client.lock("a").acquire(timeout=0)
