"""ZooKeeper: one server, plain or with TLS or SASL, and an ensemble whose nodes a test can separate.

    with Server(ZooKeeper()) as server: ...
    with ensemble() as nodes: ...
    with Ways() as ways, ensemble(ways) as nodes: ...       # a fault proxy for each node and port of another

It runs from Debian's zookeeper.jar. `ask` sends a four-letter word; zookeeper_session.py reads and writes.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.servers import ports, programs
from lab.servers.certificates import Certificates
from lab.servers.supervisor import Server, together, until
from lab.servers.switchboard import Switchboard

Route = Callable[[int, int], int]
"""(port, by): where the node `by` connects when it wants that port of another."""

JARS = ("zookeeper", "slf4j-simple", "netty-codec", "netty-resolver", "netty-transport-native-unix-common")
"""Needed by Netty and TLS beyond the manifest, and a log on stderr."""
JAVA = ("-Xmx96m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


@dataclass(frozen=True)
class Member:
    """One node of an ensemble: its number, and for each number where it is followed and where it is elected."""

    number: int
    all: Mapping[int, tuple[int, int]]

    def lines(self) -> list[str]:
        servers = [f"server.{number}={ports.HOST}:{follow}:{elect}" for number, (follow, elect) in self.all.items()]
        return [*servers, "initLimit=8", "syncLimit=6"]


class ZooKeeper:
    """One node. `lines` are added to its configuration as they are; `sasl`: passwords by user, and nobody else may."""

    name = "zookeeper"
    user = None

    def __init__(
        self,
        *lines: str,
        tick_ms: int = 500,
        tls: Certificates | None = None,
        client_certificates: bool = False,
        sasl: Mapping[str, str] | None = None,
        member: Member | None = None,
        java: Sequence[str] = (),
        port: int | None = None,
    ) -> None:
        self.port = port or ports.reserve()
        self.ports: tuple[int, ...] = (self.port, *(member.all[member.number] if member else ()))
        self._tls, self._sasl, self._member, self._java = tls, dict(sasl or {}), member, java
        self._lines = [
            f"{'secureClientPort' if tls else 'clientPort'}={self.port}",
            f"{'secureClientPortAddress' if tls else 'clientPortAddress'}={ports.HOST}",
            f"tickTime={tick_ms}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
            *(member.lines() if member else ()),
            *(_tls_lines(tls, client_certificates) if tls else ()),
            *(_sasl_lines() if sasl else ()),
            *lines,
        ]

    def prepare(self, data: Path) -> None:
        (data / "zoo.cfg").write_text("\n".join([f"dataDir={data}", *self._lines, ""]))
        if self._member:
            (data / "myid").write_text(f"{self._member.number}\n")
        if self._sasl:
            users = " ".join(f'user_{user}="{password}"' for user, password in self._sasl.items())
            module = "org.apache.zookeeper.server.auth.DigestLoginModule"
            (data / "jaas.conf").write_text(f"Server {{ {module} required {users}; }};\n")

    def command(self, data: Path) -> list[str]:
        class_path = ":".join(str(programs.ZOOKEEPER_JAR.with_name(f"{jar}.jar")) for jar in JARS)
        jaas = [f"-Djava.security.auth.login.config={data / 'jaas.conf'}"] if self._sasl else []
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [programs.program("java"), *JAVA, *self._java, *jaas, "-cp", class_path, main, str(data / "zoo.cfg")]

    def ready(self) -> bool:
        return mode(self.ask("srvr", within=2)) is not None

    def url(self, **parts: str) -> str:
        login = f"{parts['user']}:{parts.get('password', '')}@" if "user" in parts else ""
        return f"{'zookeepers' if self._tls else 'zookeeper'}://{login}{parts.get('host', ports.HOST)}:{self.port}"

    def ask(self, *words: str, within: float = programs.ANSWER) -> str:
        (word,) = words
        try:
            with connect(self.port, client_context(self._tls) if self._tls else None, within) as line:
                line.sendall(word.encode())
                return b"".join(iter(lambda: line.recv(65536), b"")).decode()
        except TimeoutError:
            raise programs.Silent(f"{word}: no answer within {within:g} s") from None
        except OSError as error:
            raise programs.Refused(f"{word}: {error}") from error


@contextlib.contextmanager
def ensemble(route: Route | None = None, *, size: int = 3, tick_ms: int = 500) -> Iterator[tuple[Server, ...]]:
    """Nodes 1 to `size`, given once all of them serve. `route` puts proxies between them; a node's own ports are
    `kind.ports`: for clients, for followers, for elections."""
    listening = {number: (ports.reserve(), ports.reserve()) for number in range(1, size + 1)}
    with contextlib.ExitStack() as stack:

        def routed(number: int) -> list[str]:
            if route is None:
                return []
            board = Switchboard(lambda port: route(port, number))
            stack.callback(board.close)
            return board.options()

        kinds = [
            ZooKeeper(tick_ms=tick_ms, member=Member(number, listening), java=routed(number)) for number in listening
        ]
        yield stack.enter_context(together(*kinds))


def leader(nodes: tuple[Server, ...]) -> Server:
    """The leader of the nodes that run; waits until there is one."""

    def found() -> Server | None:
        return next((node for node in nodes if node.running() and _leads(node)), None)

    node = until(found, what="a leader")
    assert isinstance(node, Server)
    return node


def _leads(node: Server) -> bool:
    with contextlib.suppress(programs.Refused, programs.Silent):
        return mode(node.ask("srvr", within=2)) == "leader"
    return False


def mode(srvr: str) -> str | None:
    """standalone, leader or follower; None: it does not serve."""
    return next((line.split()[1] for line in srvr.splitlines() if line.startswith("Mode:")), None)


def client_context(tls: Certificates, *, known: bool = True) -> ssl.SSLContext:
    """The TLS context of a client that trusts the authority. `known`: it has a certificate of its own."""
    context = ssl.create_default_context(cafile=tls.authority.certificate)
    if known:
        context.load_cert_chain(tls.client.certificate, tls.client.key)
    return context


def connect(port: int, context: ssl.SSLContext | None, within: float) -> socket.socket:
    line = socket.create_connection((ports.HOST, port), timeout=within)
    if context is None:
        return line
    try:
        return context.wrap_socket(line, server_hostname=ports.HOST)
    except BaseException:
        line.close()
        raise


def _tls_lines(tls: Certificates, client_certificates: bool) -> list[str]:
    return [
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"ssl.keyStore.location={tls.server.together}",
        f"ssl.trustStore.location={tls.authority.together}",
        "ssl.keyStore.type=PEM",
        "ssl.trustStore.type=PEM",
        f"ssl.clientAuth={'need' if client_certificates else 'none'}",
    ]


def _sasl_lines() -> list[str]:
    return [
        "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "enforce.auth.enabled=true",
        "enforce.auth.schemes=sasl",
    ]
