"""ZooKeeper: what it keeps, whom it lets in, and an ensemble that elects, also when its ways are cut."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from lab.servers import certificates, ports
from lab.servers.programs import Refused, Silent, require
from lab.servers.supervisor import Server, until
from lab.servers.ways import Ways
from lab.servers.zookeeper import ZooKeeper, client_context, ensemble, leader, mode
from lab.servers.zookeeper_session import Session

pytestmark = pytest.mark.timeout(150)  # several elections, on a machine that others use too


@pytest.fixture(autouse=True)
def _installed() -> None:
    require("zookeeper")


def write(node: Server) -> None:
    """An election may come in between."""

    def written() -> bool:
        with Session(node.port) as session:
            try:
                session.create("/a", b"1")
            except Refused as error:
                return "-110" in str(error)  # there already: the answer of the first try was lost
        return True

    until(written, what=f"written to {node!r}")


def reads(node: Server) -> None:
    def read() -> bool:
        with Session(node.port) as session:
            return session.get("/a") == b"1"

    until(read, what=f"read from {node!r}")


def serves(node: Server) -> bool:
    return mode(node.ask("srvr", within=2)) is not None


def test_life() -> None:
    with Server(ZooKeeper()) as server:
        with Session(server.port) as session:
            session.create("/a", b"1")
            session.create("/ours", b"", ephemeral=True)
            server.stop()
            with pytest.raises(Silent):
                server.ask("ruok", within=0.3)
            server.resume()
            assert session.get("/a") == b"1"
        assert server.ask("ruok") == "imok"
        server.restart()
        with Session(server.port) as session:
            assert session.get("/a") == b"1"
            with pytest.raises(Refused, match="-101"):
                session.get("/ours")
        server.restart(wipe=True)
        with Session(server.port) as session, pytest.raises(Refused, match="-101"):
            session.get("/a")


def test_sasl() -> None:
    with Server(ZooKeeper(sasl={"ana": "secret"})) as server:
        with Session(server.port, login=("ana", "secret")) as session:
            session.create("/a", b"1")
            assert session.get("/a") == b"1"
        for login in (("ana", "wrong"), ("bob", "other"), None):
            with pytest.raises(Refused), Session(server.port, login=login) as session:
                session.get("/a")
        assert server.url(user="ana", password="secret") == f"zookeeper://ana:secret@{ports.HOST}:{server.port}"


def test_tls(tmp_path: Path) -> None:
    require("openssl")
    tls = certificates.make(tmp_path)
    with Server(ZooKeeper(tls=tls, client_certificates=True)) as server:
        assert server.url().startswith("zookeepers://")
        with Session(server.port, context=client_context(tls)) as session:
            session.create("/a", b"1")
            assert session.get("/a") == b"1"
        with pytest.raises(Refused, match="CERTIFICATE_VERIFY_FAILED"):
            Session(server.port, context=ssl.create_default_context(cafile=tls.self_signed.certificate))
        for context in (client_context(tls, known=False), None):
            with pytest.raises(Refused), Session(server.port, context=context) as session:
                session.get("/a")
        assert server.ask("ruok") == "imok"


def modes(nodes: tuple[Server, ...]) -> list[str | None]:
    return sorted((mode(node.ask("srvr")) for node in nodes), key=str)


@pytest.mark.slow
def test_an_ensemble_elects_anew() -> None:
    with ensemble() as nodes:
        until(lambda: modes(nodes) == ["follower", "follower", "leader"], what="one leads, two follow")
        write(nodes[0])
        for node in nodes:
            reads(node)
        first = leader(nodes)
        first.kill()
        second = leader(tuple(node for node in nodes if node is not first))
        reads(second)
        reads(first.restart())
        second.stop()
        with pytest.raises(Silent):
            second.ask("srvr", within=0.3)
        third = leader(tuple(node for node in nodes if node is not second))
        reads(third)
        second.resume()
        until(lambda: mode(second.ask("srvr", within=2)) == "follower", what="it follows")
        reads(second)
        reads(second.restart(wipe=True))


@pytest.mark.slow
def test_a_node_that_reaches_no_other_does_not_serve() -> None:
    with Ways() as ways, ensemble(ways) as nodes:
        isolated = leader(nodes)
        ways.cut_off(nodes.index(isolated) + 1, isolated.kind.ports)
        until(lambda: not serves(isolated), what="the isolated one ceases to serve")
        elected = leader(tuple(node for node in nodes if node is not isolated))
        write(elected)
        assert not serves(isolated)
        ways.heal()
        reads(isolated)
        assert all(map(ways.used, elected.kind.ports[1:]))
