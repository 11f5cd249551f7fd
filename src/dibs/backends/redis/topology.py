"""Which server has a key: a single server, the primary that sentinels watch, or the nodes of a cluster.

`locate` does no I/O. If the server that it names refuses or is silent, the caller reports that by `forget` or `moved`.
Threads may share a topology, because its table is replaced as a whole.

A sentinel may be the last to hear of a fail-over. So a majority of them must name the same primary with the same epoch,
and the server itself must say that it is a primary. failover.py decides which replies count, and asks again once a
second. If the sentinels of the URL are no majority, the others are found through them.

The slot table of a cluster comes from any node that answers. A node that left the cluster, or is about to join it, may
know only some of the slots. Its table is used if no other node knows more; the keys of unknown slots have no server.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from redis.connection import AbstractConnection
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import RedisError, ResponseError

from dibs.backends.redis.address import Address
from dibs.backends.redis.discovery import Discovery, ask, facts, named
from dibs.backends.redis.failover import Failover, Term
from dibs.backends.redis.settings import Endpoint
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import printable

SlotTable = list[Endpoint | None]
"""The primary of each slot."""
MOVES = 5
"""After this many moved slots, the whole table is out of date."""


def topology(address: Address, now: Callable[[], float]) -> Topology:
    kinds = {"sentinel": Sentinel, "cluster": Cluster}
    return kinds.get(address.topology, Topology)(address, now)


class Topology:
    """A single server: there is nothing to learn."""

    failover: Failover | None = None
    """With Sentinel: which grants count."""

    def __init__(self, address: Address, now: Callable[[], float]) -> None:
        self._address = address
        self._discovery = Discovery(address.shown, now)
        self._primary: Endpoint | None = address.endpoints[0]

    def locate(self, key: bytes) -> Endpoint | None:
        """None: call `learn`. If it is still None then, no server has this key now."""
        return self._primary

    def group(self, key: bytes) -> int:
        """Keys of one group may be in one script."""
        return 0

    def learn(self, until: float) -> None:
        """Ask the servers; blocks. Raises StoreUnavailable if asking again may help, else another StoreError."""
        self._discovery.once(lambda: self._learn(until), until)

    def _learn(self, until: float) -> None: ...

    def forget(self, endpoint: Endpoint) -> None:
        """The server did not answer, or is no primary any more."""

    def moved(self, key: bytes, endpoint: Endpoint) -> None:
        """A MOVED reply: this server has the key's slot. `endpoint` comes from `reached`."""

    def reached(self, reply: tuple[str, int], asked: Endpoint) -> Endpoint:
        """Our address of the server that MOVED or ASK names. Without a host it is the server that was asked."""
        return self._address.reachable((reply[0] or asked[0], reply[1]))

    def all(self) -> list[Endpoint]:
        """Every primary that is known."""
        primary = self._primary
        return [] if primary is None else [primary]

    def attend(self, runtime: Runtime) -> None:
        """Follow fail-overs in a thread while the store is used."""

    def close(self) -> None:
        """Stop what `attend` started."""


class Cluster(Topology):
    def __init__(self, address: Address, now: Callable[[], float]) -> None:
        super().__init__(address, now)
        self._table: SlotTable = [None] * SLOTS
        self._nodes: tuple[Endpoint, ...] = ()
        """All known nodes, including replicas, in the order in which they are asked."""
        self._moves = 0

    def locate(self, key: bytes) -> Endpoint | None:
        return self._table[key_slot(key)]

    def group(self, key: bytes) -> int:
        return key_slot(key)

    def forget(self, endpoint: Endpoint) -> None:
        """Also ask this node last from now on: a node that was cut off still reports its old table."""
        self._table = [None if known == endpoint else known for known in self._table]
        if endpoint in self._nodes:
            self._nodes = (*(node for node in self._nodes if node != endpoint), endpoint)

    def moved(self, key: bytes, endpoint: Endpoint) -> None:
        """After several moves, also forget the other slots of the old server: they are learned when next used."""
        slot = key_slot(key)
        table = self._table.copy()
        old, table[slot] = table[slot], endpoint
        self._moves += 1
        if self._moves >= MOVES and old is not None:
            self._moves = 0
            table = [None if known == old else known for known in table]
        self._table = table

    def all(self) -> list[Endpoint]:
        return list(dict.fromkeys(endpoint for endpoint in self._table if endpoint is not None))

    def _learn(self, until: float) -> None:
        partial: list[tuple[SlotTable, list[Endpoint]]] = []

        def question(node: Endpoint, patience: float) -> tuple[SlotTable, list[Endpoint]]:
            table, nodes = self._told_by(node, patience)
            if not any(table):
                raise StoreUnavailable(f"{named(node)} knows no other node yet")
            if None in table:
                partial.append((table, nodes))
                missing = table.count(None)
                raise StoreUnavailable(f"{named(node)} knows no node for {missing} of {SLOTS} slots")
            return table, nodes

        to_ask = (*self._nodes, *self._address.endpoints)
        try:
            table, nodes = self._discovery.in_turn(
                to_ask, question, until, "no node of the cluster tells where keys are"
            )
        except StoreUnavailable:
            if not partial:
                raise
            table, nodes = min(partial, key=lambda reply: reply[0].count(None))
        self._table, self._nodes, self._moves = table, tuple(nodes), 0

    def _told_by(self, node: Endpoint, patience: float) -> tuple[SlotTable, list[Endpoint]]:
        is_single = False
        try:
            answer = ask(self._address.connection(node, patience), "CLUSTER", "SLOTS")
        except ResponseError as error:
            is_single = "cluster support disabled" in str(error)
            if not is_single:
                raise
        if is_single:
            raise StoreError(f"{named(node)} is not a node of a cluster", step="write redis:// for a single server")
        return self.read(answer, node)

    def read(self, answer: object, asked: Endpoint) -> tuple[SlotTable, list[Endpoint]]:
        """Parse CLUSTER SLOTS: the table, and all nodes in it, beginning with the node that was asked."""
        table: SlotTable = [None] * SLOTS
        nodes: list[Endpoint] = [asked]
        for slots in answer if isinstance(answer, list) else []:
            match slots:
                case [int(first), int(last), _, *_] if 0 <= first <= last < SLOTS:
                    endpoints = [self._endpoint(reply, asked) for reply in slots[2:]]
                    nodes += [endpoint for endpoint in endpoints if endpoint is not None]
                    table[first : last + 1] = [endpoints[0]] * (last + 1 - first)
        return table, list(dict.fromkeys(nodes))

    def _endpoint(self, reply: Any, asked: Endpoint) -> Endpoint | None:
        """Parse `[host, port, id, more]`. If the host is "?", the node has no host name, and `more` has its address."""
        match reply:
            case [bytes() | None as host, int(port), *rest] if 0 < port < 65536:
                if host == b"?":
                    host = facts(rest[1]).get(b"ip") if len(rest) > 1 else None
                return self.reached((host.decode(errors="replace") if isinstance(host, bytes) else "", port), asked)
        return None


class _Opinion(NamedTuple):
    """The report of one sentinel."""

    primary: Endpoint
    epoch: int
    """The number of the fail-over that made it the primary."""
    since: float
    """The local instant by which the sentinel had named it."""
    sentinels: int
    """How many sentinels it knows, itself included."""


class Sentinel(Topology):
    failover: Failover

    def __init__(self, address: Address, now: Callable[[], float]) -> None:
        super().__init__(address, now)
        self._now = now
        self._service = address.service or ""
        self._sentinels = address.endpoints
        """In the order in which they are asked: those that answered last time come first."""
        self._open: dict[Endpoint, _Channel] = {}
        """Idle connections."""
        self._closed = False
        self._primary = None
        self.failover = Failover(now)

    def forget(self, endpoint: Endpoint) -> None:
        if self._primary == endpoint:
            self._primary = None

    def attend(self, runtime: Runtime) -> None:
        self.failover.attend(runtime, self.learn)

    def close(self) -> None:
        self._closed = True
        self.failover.close()
        self._close_open()

    def _close_open(self) -> None:
        for sentinel in list(self._open):
            if (channel := self._open.pop(sentinel, None)) is not None:
                channel.close()

    def _put_back(self, sentinel: Endpoint, channel: _Channel) -> None:
        self._open[sentinel] = channel
        if self._closed:  # during the request
            self._close_open()

    def _learn(self, until: float) -> None:
        asked_at = self._now()
        opinions: dict[bytes | Endpoint, _Opinion] = {}
        doubted: dict[Endpoint, StoreError] = {}
        answered: list[Endpoint] = []

        def question(sentinel: Endpoint, patience: float) -> Term:
            voter, opinion = self._opinion_of(sentinel, patience)
            opinions[voter] = opinion
            answered.append(sentinel)
            term = self._elected(opinions, opinion, asked_at)
            is_known = term is self.failover.term and term.primary == self._primary
            if opinion.primary not in doubted and not is_known:
                doubt = self._doubt(opinion.primary, patience)
                if doubt is not None:
                    doubted[opinion.primary] = doubt
            if opinion.primary in doubted:
                raise doubted[opinion.primary]
            return term

        what = f'no majority of the sentinels names the primary of "{printable(self._service)}"'
        try:
            term = self._discovery.in_turn(self._sentinels, question, until, what)
        except StoreUnavailable:
            others = self._others(answered, until)
            if not others:
                raise
            self._sentinels += others
            term = self._discovery.in_turn(others, question, until, what)
        finally:
            self._sentinels = tuple(dict.fromkeys((*answered, *self._sentinels)))
        self.failover.term = term
        self._primary = term.primary

    def _elected(self, opinions: dict[bytes | Endpoint, _Opinion], last: _Opinion, asked_at: float) -> Term:
        """The term that a majority names, confirmed. Raises StoreUnavailable if there is no majority."""
        agreed = [one for one in opinions.values() if (one.primary, one.epoch) == (last.primary, last.epoch)]
        count = max(len(self._address.endpoints), *(one.sentinels for one in opinions.values()))
        if 2 * len(agreed) <= count:
            raise StoreUnavailable(f"{len(agreed)} of {count} name {named(last.primary)}")
        term = self.failover.term
        if term is None or (term.primary, term.epoch) != (last.primary, last.epoch):
            term = Term(last.primary, last.epoch)
        term.confirm(asked_at, max(one.since for one in agreed))
        return term

    def _opinion_of(self, sentinel: Endpoint, patience: float) -> tuple[bytes | Endpoint, _Opinion]:
        """The report of a sentinel, and its id: a sentinel with two addresses counts once."""
        channel = self._open.pop(sentinel, None)
        if channel is not None:
            try:
                return self._told_by(channel, sentinel)
            except Disconnected:  # the idle connection had been closed
                pass
        return self._told_by(_Channel(self._address.sentinel_connection(sentinel, patience)), sentinel)

    def _told_by(self, channel: _Channel, sentinel: Endpoint) -> tuple[bytes | Endpoint, _Opinion]:
        try:
            opinion = self._read(channel, sentinel)
        except BaseException:
            channel.close()
            raise
        self._put_back(sentinel, channel)
        return channel.id or sentinel, opinion

    def _read(self, channel: _Channel, sentinel: Endpoint) -> _Opinion:
        try:
            reply = facts(channel.ask("MASTER", self._service))
        except ResponseError as error:
            if "No such master" not in str(error):
                raise
            reply = None
        if reply is None:
            raise _unknown(sentinel, self._service, channel.ask("MASTERS"))
        host, port, others = reply.get(b"ip"), _number(reply, b"port"), _number(reply, b"num-other-sentinels")
        if not isinstance(host, bytes) or not port:
            raise StoreUnavailable(f"{named(sentinel)} does not answer as a sentinel does")
        if others < self._address.least_sentinels:
            least = self._address.least_sentinels
            raise StoreUnavailable(f"{named(sentinel)} sees {others} other sentinels; it should see {least}")
        if b"failover_in_progress" in reply.get(b"flags", b""):
            raise StoreUnavailable(f"{named(sentinel)} is replacing the primary")
        return _Opinion(
            self._address.reachable((host.decode(errors="replace"), port)),
            _number(reply, b"config-epoch"),
            self._now() - _number(reply, b"role-reported-time") / 1000,
            others + 1,
        )

    def _others(self, answered: list[Endpoint], until: float) -> tuple[Endpoint, ...]:
        """Sentinels that are known only to the sentinels that answered."""
        found: dict[Endpoint, None] = {}
        for sentinel in answered:
            channel = self._open.pop(sentinel, None) if self._now() < until else None
            if channel is None:
                continue
            try:
                reply = channel.ask("SENTINELS", self._service)
            except RedisError:
                channel.close()
                continue
            self._put_back(sentinel, channel)
            for other in reply if isinstance(reply, list) else ():
                host, port = facts(other).get(b"ip"), _number(facts(other), b"port")
                if isinstance(host, bytes) and port:
                    found[(host.decode(errors="replace"), port)] = None
        return tuple(endpoint for endpoint in found if endpoint not in self._sentinels)

    def _doubt(self, primary: Endpoint, patience: float) -> StoreError | None:
        """Why this server is not the primary now; None: it is."""
        try:
            answer = ask(self._address.connection(primary, patience), "ROLE")
        except RedisError as error:
            return self._discovery.noted(error, primary, patience)
        if isinstance(answer, list) and answer[:1] == [b"master"]:
            return None
        return StoreUnavailable(f"{named(primary)} is named as the primary, but is not the primary yet")


class _Channel:
    """A connection to one sentinel, kept between requests."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self.id: bytes | None = None
        """None: the sentinel does not tell it (before Redis 6.2, or by its ACL)."""
        try:
            connection.connect()
            with suppress(ResponseError):
                id = self.ask("MYID")
                self.id = id if isinstance(id, bytes) else None
        except BaseException:
            self.close()
            raise

    def ask(self, *words: str) -> Any:
        self._connection.send_command("SENTINEL", *words)
        return self._connection.read_response()

    def close(self) -> None:
        self._connection.disconnect()


def _number(reply: dict[bytes, Any], name: bytes) -> int:
    value = reply.get(name)
    return int(value) if isinstance(value, bytes) and value.isdigit() else 0


def _unknown(sentinel: Endpoint, service: str, masters: object) -> StoreError:
    names = [facts(one).get(b"name") for one in masters] if isinstance(masters, list) else []
    known = ", ".join(f'"{printable(name.decode(errors="replace"))}"' for name in names if isinstance(name, bytes))
    return StoreError(
        f'{named(sentinel)} watches no service "{printable(service)}"; it watches {known or "none"}',
        step="give one of them in the URL" if known else "check the sentinel's configuration",
    )
