"""Servers in special places: on a disk that gets full, in a Galera cluster."""

from __future__ import annotations

import os
import subprocess
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

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
PRIVATE = 'mount -t tmpfs -o size={size}m tmpfs "$0"; cp -a --sparse=never "$0.whole/." "$0"; exec "$@"'
"""In a name space of its own: the disk is gone with the server."""


class Small:
    """A MariaDB whose data is on a small disk."""

    user = None

    def __init__(self, size: int) -> None:
        self._inner = MariaDB("--user=root", "--innodb-undo-log-truncate=off")
        self._size = size
        self.name, self.port, self.ports = self._inner.name, self._inner.port, self._inner.ports
        self.ready, self.url, self.ask = self._inner.ready, self._inner.url, self._inner.ask

    def prepare(self, data: Path) -> None:
        whole = data.with_name(f"{data.name}.whole")
        whole.mkdir()
        self._inner.prepare(whole)

    def command(self, data: Path) -> list[str]:
        return ["unshare", "-m", "sh", "-ec", PRIVATE.format(size=self._size), str(data), *self._inner.command(data)]


@pytest.mark.soak  # once, the server closed the connection instead of reporting that the disk is full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a disk")
def test_a_disk_that_is_full() -> None:
    """What needs no room goes on; what does is refused until there is some, and nothing is half done."""
    require("mariadb")
    with Server(Small(size=160)) as server, closing(dibs.connect(server.url(), retry=1, lease=300)) as client:
        with client.lock("a") as first:
            pass
        ballast = server.data / "ballast"
        inside = ["nsenter", f"--target={server.pid}", "--mount"]
        subprocess.run([*inside, "dd", "if=/dev/zero", f"of={ballast}", "bs=64k"], capture_output=True, check=False)
        held: list[dibs.Hold] = []
        with pytest.raises(dibs.StoreUnavailable, match=r"disk|log"):
            hold_on(client, held)
        print(f"figure: with no room on the disk {len(held)} more were granted")
        for hold in held:
            hold.check()
        subprocess.run([*inside, "rm", str(ballast)], check=True)
        with client.lock("a", timeout=20) as again:
            assert again.token > max([first.token, *(hold.token for hold in held)])
        assert len(list(client.locks())) == len(held), "nobody stands there who was not told so"


def hold_on(client: dibs.Client, held: list[dibs.Hold]) -> None:
    """Until there is no page left for one more; some find room that the server had set aside."""
    for number in range(20_000):
        hold = client.lock(f"{number} {'x' * 480}", timeout=1).acquire()
        assert hold is not None
        held.append(hold)


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
