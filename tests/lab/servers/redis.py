"""One redis-server, one redis-sentinel. redis_groups.py has groups of them.

    with Server(Redis(persist="always")) as server: ...

By default nothing is kept on disk. `through` maps a port to the one to advertise in its place: a proxy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from lab.servers import ports, programs
from lab.servers.certificates import Certificates

Through = Callable[[int], int]
QUICK = "repl-diskless-sync-delay 0"
"""A replica is in step without a wait that is meant for slow networks."""


def directly(port: int) -> int:
    return port


class Redis:
    """One redis-server. `lines` are added to its configuration as they are."""

    name = "redis"
    user = None

    def __init__(
        self,
        *lines: str,
        persist: Literal["no", "everysec", "always"] = "no",
        password: str | None = None,
        users: Mapping[str, str] | None = None,
        tls: Certificates | None = None,
        client_certificates: bool = False,
        cluster_timeout_ms: int | None = None,
        through: Through = directly,
        port: int | None = None,
    ) -> None:
        """`users`: ACL rules by name. `client_certificates`: who shows none is refused. `cluster_timeout_ms`: it is a
        node of a cluster, which calls a node down that is silent for so long. `port`: of one that runs already."""
        self.port = port or ports.reserve()
        self.ports: tuple[int, ...] = (self.port,)
        self._password, self._tls, self._through = password, tls, through
        self._lines = [f"bind {ports.HOST}", f"port {0 if tls else self.port}", 'save ""', QUICK]
        self._lines += ["appendonly no"] if persist == "no" else ["appendonly yes", f"appendfsync {persist}"]
        self._lines += [f"user {name} on {rules}" for name, rules in (users or {}).items()]
        if password is not None:
            self._lines += [f"requirepass {password}", f"masterauth {password}"]
        if tls is not None:
            self._secure(tls, client_certificates)
        if cluster_timeout_ms is not None:
            self._join_cluster(cluster_timeout_ms)
        self._lines += [f"replica-announce-ip {ports.HOST}", f"replica-announce-port {through(self.port)}", *lines]

    def _secure(self, tls: Certificates, client_certificates: bool) -> None:
        self._lines += [
            f"tls-port {self.port}",
            f"tls-ca-cert-file {tls.authority.certificate}",
            f"tls-cert-file {tls.server.certificate}",
            f"tls-key-file {tls.server.key}",
            f"tls-auth-clients {'yes' if client_certificates else 'no'}",
            "tls-replication yes",
            "tls-cluster yes",
        ]

    def _join_cluster(self, timeout_ms: int) -> None:
        bus = ports.reserve()
        self.ports = (self.port, bus)
        self._lines += [
            "cluster-enabled yes",
            f"cluster-node-timeout {timeout_ms}",
            f"cluster-port {bus}",
            f"cluster-announce-ip {ports.HOST}",
            f"cluster-announce-port {self._through(self.port)}",
            f"cluster-announce-bus-port {self._through(bus)}",
        ]

    def prepare(self, data: Path) -> None:
        # In the data, as a fail-over rewrites it: a restart that keeps the data keeps that too.
        (data / "redis.conf").write_text("\n".join([*self._lines, ""]))

    def command(self, data: Path) -> list[str]:
        return [programs.program("redis-server"), str(data / "redis.conf")]

    def ready(self) -> bool:
        return self.ask("PING", within=2) == "PONG"

    def url(self, **parts: str) -> str:
        """`user`, `password` and `host` replace what this server was made with."""
        login = f"{parts.get('user', '')}:{parts.get('password', self._password or '')}@"
        scheme = "rediss" if self._tls else "redis"
        return f"{scheme}://{login if login != ':@' else ''}{parts.get('host', ports.HOST)}:{self.port}/0"

    def advertised(self) -> tuple[int, ...]:
        """The ports that others are told to use: for clients and, in a cluster, for its nodes."""
        return tuple(map(self._through, self.ports))

    def ask(self, *words: str, within: float = programs.ANSWER) -> str:
        login = ["-a", self._password, "--no-auth-warning"] if self._password else []
        return self.cli(*login, *(shown(self._tls) if self._tls else ()), "-e", *words, within=within)

    def cli(self, *words: str, within: float = programs.ANSWER) -> str:
        """redis-cli against this port, with no login and no TLS but what `words` say."""
        return _cli(self.port, *words, within=within)


class Sentinel:
    """One redis-sentinel that watches the primary at a port, under the name `main`."""

    name = "sentinel"
    user = None

    def __init__(
        self, primary: int, *, quorum: int, down_after_ms: int, password: str | None, through: Through
    ) -> None:
        self.port = ports.reserve()
        self.ports: tuple[int, ...] = (self.port,)
        self._lines = [
            f"bind {ports.HOST}",
            f"port {self.port}",
            f"sentinel announce-ip {ports.HOST}",
            f"sentinel announce-port {through(self.port)}",
            f"sentinel monitor main {ports.HOST} {primary} {quorum}",
            f"sentinel down-after-milliseconds main {down_after_ms}",
            "sentinel failover-timeout main 3000",
            *([] if password is None else [f"sentinel auth-pass main {password}"]),
        ]

    def prepare(self, data: Path) -> None:
        (data / "sentinel.conf").write_text("\n".join([*self._lines, ""]))

    def command(self, data: Path) -> list[str]:
        return [programs.program("redis-sentinel"), str(data / "sentinel.conf")]

    def ready(self) -> bool:
        return self.ask("PING", within=2) == "PONG"

    def url(self, **parts: str) -> str:
        return f"redis://{parts.get('host', ports.HOST)}:{self.port}"

    def ask(self, *words: str, within: float = programs.ANSWER) -> str:
        return _cli(self.port, "-e", *words, within=within)


def _cli(port: int, *words: str, within: float) -> str:
    return programs.ask(["redis-cli", "-h", ports.HOST, "-p", str(port), *words], within=within)


def shown(tls: Certificates) -> tuple[str, ...]:
    """The options of redis-cli for a client that trusts the authority and is known to it."""
    options = {"--cacert": tls.authority.certificate, "--cert": tls.client.certificate, "--key": tls.client.key}
    return ("--tls", *(str(part) for option in options.items() for part in option))
