"""Which server has a key: one by itself, a primary that sentinels watch, a cluster.

`locate` does no I/O: an answer that is out of date shows when the server refuses or is silent, and then `forget` or
`moved` says so. Safe to share between threads: the table is replaced as a whole.

A sentinel may be the last to hear of a fail-over, so a majority of them must name the same primary, of the same
fail-over. The server itself must say that it is a primary, too: a new one may not be one yet. failover.py says what
that is worth, and asks again once a second. Sentinels that the URL does not name are found through those that it names,
when these are no majority.

The table of a cluster comes from any node that answers. A node that left the cluster, or is about to join it, may know
only some of the slots: it is believed where no other knows more, and a key in none of them has no place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

Table = list[Endpoint | None]
"""The primary of each slot."""
MOVES = 5
"""After this many moved slots the whole table is old."""


def topology(address: Address, now: Callable[[], float]) -> Topology:
    kinds = {"sentinel": Sentinel, "cluster": Cluster}
    return kinds.get(address.topology, Topology)(address, now)


class Topology:
    """One server: there is nothing to learn, and nowhere else to go."""

    failover: Failover | None = None
    """Where sentinels choose the primary: which grants count."""

    def __init__(self, address: Address, now: Callable[[], float]) -> None:
        self._address = address
        self._discovery = Discovery(address.shown, now)
        self._primary: Endpoint | None = address.endpoints[0]

    def locate(self, key: bytes) -> Endpoint | None:
        """None: learn first; and if it is None even then, no server has this key now."""
        return self._primary

    def learn(self, until: float) -> None:
        """Ask the servers. Blocks; StoreUnavailable names what failed, and asking again may help; another StoreError
        is for good."""

    def forget(self, endpoint: Endpoint) -> None:
        """It did not answer, or said that it is no primary: where it was the answer, there is none now."""

    def moved(self, key: bytes, endpoint: Endpoint) -> None:
        """A MOVED answer: the key's slot is at this place, which is what `reached` gives."""

    def reached(self, reply: tuple[str, int], asked: Endpoint) -> Endpoint:
        """Where MOVED and ASK lead us: without a host it is the one that was asked, and a driver may know another way
        to it."""
        return (reply[0] or asked[0], reply[1])

    def all(self) -> list[Endpoint]:
        """Every primary that is known."""
        primary = self._primary
        return [] if primary is None else [primary]

    def attend(self, runtime: Runtime) -> None:
        """Keep up with fail-overs, in a thread, while the store is used."""

    def close(self) -> None:
        """End what `attend` began."""


class Cluster(Topology):
    def __init__(self, address: Address, now: Callable[[], float]) -> None:
        super().__init__(address, now)
        self._table: Table = [None] * SLOTS
        self._nodes: tuple[Endpoint, ...] = ()
        """All that are known, replicas too, in the order in which they are asked."""
        self._moves = 0

    def locate(self, key: bytes) -> Endpoint | None:
        return self._table[key_slot(key)]

    def learn(self, until: float) -> None:
        self._discovery.once(lambda: self._learn(until), until)

    def forget(self, endpoint: Endpoint) -> None:
        """It is the last one to be asked next time: a node that was cut off goes on to tell what it knew."""
        self._table = [None if known == endpoint else known for known in self._table]
        if endpoint in self._nodes:
            self._nodes = (*(node for node in self._nodes if node != endpoint), endpoint)

    def moved(self, key: bytes, endpoint: Endpoint) -> None:
        """After some of these the old place is forgotten, and so the rest is learned when it is next asked for."""
        slot = key_slot(key)
        table = self._table.copy()
        old, table[slot] = table[slot], endpoint
        self._moves += 1
        if self._moves >= MOVES and old is not None:
            self._moves = 0
            table = [None if known == old else known for known in table]
        self._table = table

    def reached(self, reply: tuple[str, int], asked: Endpoint) -> Endpoint:
        return self._address.reachable((reply[0] or asked[0], reply[1]))

    def all(self) -> list[Endpoint]:
        return list(dict.fromkeys(endpoint for endpoint in self._table if endpoint is not None))

    def _learn(self, until: float) -> None:
        fullest: list[tuple[Table, list[Endpoint]]] = []

        def question(node: Endpoint, patience: float) -> tuple[Table, list[Endpoint]]:
            table, nodes = self._told_by(node, patience)
            if not any(table):
                raise StoreUnavailable(f"{named(node)} knows no other node yet")
            if None in table:
                fullest.append((table, nodes))
                missing = table.count(None)
                raise StoreUnavailable(f"{named(node)} knows no node for {missing} of {SLOTS} slots")
            return table, nodes

        to_ask = (*self._nodes, *self._address.endpoints)
        try:
            table, nodes = self._discovery.in_turn(
                to_ask, question, until, "no node of the cluster tells where keys are"
            )
        except StoreUnavailable:
            if not fullest:
                raise
            table, nodes = min(fullest, key=lambda reply: reply[0].count(None))
        self._table, self._nodes, self._moves = table, tuple(nodes), 0

    def _told_by(self, node: Endpoint, patience: float) -> tuple[Table, list[Endpoint]]:
        try:
            answer = ask(self._address.connection(node, patience), "CLUSTER", "SLOTS")
        except ResponseError as error:
            if "cluster support disabled" not in str(error):
                raise
            alone = True
        else:
            alone = False
        if alone:
            raise StoreError(f"{named(node)} is not a node of a cluster", step="write redis:// for a single server")
        return self.read(answer, node)

    def read(self, answer: object, asked: Endpoint) -> tuple[Table, list[Endpoint]]:
        """The table, and all the nodes in it, who was asked first."""
        table: Table = [None] * SLOTS
        nodes: list[Endpoint] = [asked]
        for first, last, primary, *replicas in _ranges(answer):
            endpoints = [self._endpoint(reply, asked) for reply in (primary, *replicas)]
            nodes += [endpoint for endpoint in endpoints if endpoint is not None]
            table[first : last + 1] = [endpoints[0]] * (last + 1 - first)
        return table, list(dict.fromkeys(nodes))

    def _endpoint(self, reply: Any, asked: Endpoint) -> Endpoint | None:
        """`[host, port, id, more]`. A host "?" has no name, where nodes should have one: its address is in the rest."""
        match reply:
            case [bytes() | None as host, int(port), *rest] if 0 < port < 65536:
                if host == b"?":
                    host = facts(rest[1]).get(b"ip") if len(rest) > 1 else None
                return self.reached((host.decode(errors="replace") if isinstance(host, bytes) else "", port), asked)
        return None


def _ranges(answer: object) -> Iterator[list[Any]]:
    """First slot, last slot, the primary, its replicas; what does not look like that is left out."""
    for reply in answer if isinstance(answer, list) else []:
        match reply:
            case [int(first), int(last), _, *_] if 0 <= first <= last < SLOTS:
                yield reply


class _Opinion(NamedTuple):
    """What one sentinel says."""

    primary: Endpoint
    epoch: int
    """The number of the fail-over that made it the primary."""
    since: float
    """The local instant by which the sentinel had named it."""
    sentinels: int
    """How many there are, as far as it knows."""


class Sentinel(Topology):
    failover: Failover

    def __init__(self, address: Address, now: Callable[[], float]) -> None:
        super().__init__(address, now)
        self._now = now
        self._service = address.service or ""
        self._sentinels = address.endpoints
        """In the order in which they are asked: those that answered come first."""
        self._open: dict[Endpoint, _Channel] = {}
        """Connections that nobody uses now."""
        self._closed = False
        self._primary = None
        self.failover = Failover(now)

    def learn(self, until: float) -> None:
        self._discovery.once(lambda: self._learn(until), until)

    def forget(self, endpoint: Endpoint) -> None:
        if self._primary == endpoint:
            self._primary = None

    def reached(self, reply: tuple[str, int], asked: Endpoint) -> Endpoint:
        return self._address.reachable((reply[0] or asked[0], reply[1]))

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
        if self._closed:  # while it was asked
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
            if opinion.primary not in doubted and not self._is_known(term):
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
        """The term that a majority is in, confirmed; StoreUnavailable while they are too few."""
        agreed = [one for one in opinions.values() if (one.primary, one.epoch) == (last.primary, last.epoch)]
        count = max(len(self._address.endpoints), *(one.sentinels for one in opinions.values()))
        if 2 * len(agreed) <= count:
            raise StoreUnavailable(f"{len(agreed)} of {count} name {named(last.primary)}")
        term = self.failover.term
        if term is None or (term.primary, term.epoch) != (last.primary, last.epoch):
            term = Term(last.primary, last.epoch)
        term.confirm(asked_at, max(one.since for one in agreed))
        return term

    def _is_known(self, term: Term) -> bool:
        return term is self.failover.term and term.primary == self._primary

    def _opinion_of(self, sentinel: Endpoint, patience: float) -> tuple[bytes | Endpoint, _Opinion]:
        """With the id by which a sentinel that has two addresses counts once."""
        channel = self._open.pop(sentinel, None)
        if channel is not None:
            try:
                return self._told_by(channel, sentinel)
            except Disconnected:  # since it was last used
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
        """Sentinels that those who answered know, and we did not."""
        found: dict[Endpoint, None] = {}
        for sentinel in answered:
            channel = self._open.pop(sentinel, None)
            if channel is None or self._now() >= until:
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
        """Why this is not the primary, now."""
        try:
            answer = ask(self._address.connection(primary, patience), "ROLE")
        except RedisError as error:
            return self._discovery.noted(error, primary, patience)
        role = answer[0] if isinstance(answer, list) and answer else None
        if role == b"master":
            return None
        return StoreUnavailable(f"{named(primary)} is named as the primary, but is not the primary yet")


class _Channel:
    """A connection to one sentinel, kept between questions."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self.id: bytes | None = None
        try:
            connection.connect()
            self.id = self._id()
        except BaseException:
            self.close()
            raise

    def ask(self, *words: str) -> Any:
        self._connection.send_command("SENTINEL", *words)
        return self._connection.read_response()

    def close(self) -> None:
        self._connection.disconnect()

    def _id(self) -> bytes | None:
        """None: it does not say so (before Redis 6.2, or by its ACL)."""
        try:
            id = self.ask("MYID")
        except ResponseError:
            return None
        return id if isinstance(id, bytes) else None


def _number(reply: dict[bytes, Any], name: bytes) -> int:
    value = reply.get(name)
    return int(value) if isinstance(value, bytes) and value.isdigit() else 0


def _services(masters: object) -> dict[str, dict[bytes, Any]]:
    """All that a sentinel watches, by their names."""
    reply = [facts(service) for service in masters] if isinstance(masters, list) else []
    named = ((service.get(b"name"), service) for service in reply)
    return {name.decode(errors="replace"): service for name, service in named if isinstance(name, bytes)}


def _unknown(sentinel: Endpoint, service: str, masters: object) -> StoreError:
    known = ", ".join(f'"{printable(name)}"' for name in _services(masters))
    return StoreError(
        f'{named(sentinel)} watches no service "{printable(service)}"; it watches {known or "none"}',
        step="give one of them in the URL" if known else "check the sentinel's configuration",
    )
