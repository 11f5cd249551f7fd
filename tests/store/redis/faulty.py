"""What the tests of Redis's faults share beside lab.witness: scripts found on the wire, names by their slot, load.

`asks` fits requests that run one of our scripts on a name; `answer_to` finds on the way down what answers the first
such request, by its shape: answers bear no number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from redis.crc import key_slot

import dibs
from dibs.backends.redis.scripts import JOIN, LEAVE, RENEW, Script
from dibs.core.deadline import WAITING_LEASE
from dibs.testing.contract.harness import World, eventually
from lab.crowd import Crowd
from lab.faults import Cut, Direction, Match, at_message
from lab.proxy import UP, Proxy
from lab.servers import ports
from lab.servers.supervisor import Server
from lab.surface import Target, clock
from lab.witness import First, Witness, faces_of
from lab.worker import Spec
from process.children import until

both_faces = faces_of("redis", "redis://127.0.0.1:1")
_SHAPES = {
    JOIN: re.compile(rb"\*6\r\n:"),
    RENEW: re.compile(rb"\*\d+\r\n:\d+\r\n(?:\*5\r\n|[*$]-1\r\n)"),
    LEAVE: re.compile(rb"\*2\r\n:\d+\r\n:[01]\r\n"),
}


def asks(name: str, *scripts: Script) -> Match:
    """Requests that run one of these scripts on the line of that name."""
    key = key_of(name).encode()

    def fits(message: bytes) -> bool:
        return key in message and any(script.sha.encode() in message for script in scripts)

    return fits


def answer_to(proxy: Proxy, name: str, script: Script) -> First:
    """Fits the answer to the first such request; from now on."""
    asked = seen(proxy, UP, asks(name, script))
    return First(lambda message: asked.struck and _SHAPES[script].match(message) is not None)


def seen(proxy: Proxy, direction: Direction, match: Match) -> First:
    """`struck` once such a message has come to the proxy; it goes on its way."""
    found = First(match)

    def note(message: bytes) -> bool:
        found(message)
        return False

    proxy.add(Cut(at_message(match=note)), direction)  # only looks: it never strikes
    return found


def key_of(name: str) -> str:
    return f"dibs:{name}|line"


def through(proxy: Proxy, options: str = "") -> str:
    return f"redis://{ports.HOST}:{proxy.port}{options}"


async def warm(world: World, client: Any, name: str) -> None:
    """Connected, the subscription made, the scripts known to the server: what follows is the claim's own."""
    ana = world.actor("warmer")
    hold = await ana(lambda: client.lock(name).acquire(timeout=15))
    waiting = world.actor("other warmer").start(lambda: client.lock(name).acquire(timeout=15))
    await world.in_line(client, name, 1)
    await ana(hold.release)
    await world.actor("other warmer")((await waiting).release)


async def alone(world: World, client: Any, name: str, hold: Any) -> None:
    """It holds, is the only claim on that name, and its own deadline is not after the store's."""
    deadline = clock() + hold.remaining
    info = await world.inspect(client, name)
    (holder,) = info.holders
    assert (holder.token, info.waiters) == (hold.token, ())
    assert deadline <= clock() + holder.remaining


async def give_up(world: World, witness: Witness, actor: Any, hold: Any) -> None:
    """Give back, where a loss or a silent server on the way is no surprise."""
    with suppress(dibs.LockLost, dibs.StoreUnavailable):
        await actor(witness.give(hold))


async def renewed(witness: Witness, hold: Any, lease: float) -> None:
    """Until the keeper has renewed it once more."""
    await eventually(witness.watching(lambda: hold.remaining < 0.75 * lease), within=lease)
    await eventually(witness.watching(lambda: hold.remaining > 0.8 * lease), within=lease)


def in_its_place(won: Any, waiter: dibs.Participant, begun: float) -> bool:
    """It has not lost its place; or that took so long, from `begun` on, that a waiter may well be gone."""
    return won.token == waiter.token or (won.token > waiter.token and clock() - begun > WAITING_LEASE / 2)


class Relay:
    """Ana holds, bob waits behind her: whatever happens meanwhile, he has it from her in the end, in his place."""

    def __init__(self, world: World, name: str, url: str, lease: float) -> None:
        self._world, self._name = world, name
        self.client, self.other = world.client(url, lease=lease), world.client(url, lease=lease)
        self.ana, self.bob = world.actors("ana", "bob")
        self.witness = Witness(world, name)

    async def begin(self, timeout: float) -> None:
        self.hold = await self.ana(self.witness.take(self.client.lock(self._name)))
        self._pending = self.bob.start(self.witness.take(self.other.lock(self._name), timeout=timeout))
        await self._world.in_line(self.other, self._name, 1)
        (self._waiter,) = (await self._world.inspect(self.other, self._name)).waiters
        self.now()

    def now(self) -> None:
        """It happens from now on."""
        self._begun = clock()

    async def end(self) -> None:
        self.hold.check()
        await self.ana(self.witness.give(self.hold))
        won = await self._pending
        assert in_its_place(won, self._waiter, self._begun)
        await self.bob(self.witness.give(won))
        await self._world.free(self.other, self._name)
        self.witness.acquit()


async def after(witness: Witness, seconds: float) -> None:
    """A length of time is the condition: all holds are looked at meanwhile."""
    end = clock() + seconds
    await eventually(witness.watching(lambda: clock() >= end), within=seconds + 15)


def specs(url: str, directory: Path, lease: float, *, names: Iterable[str] = ("a", "b"), procs: int = 3) -> list[Spec]:
    """Processes with one thread and one task each, all on the same few names."""
    targets = [Target(name, "mutex", 1) for name in names]
    return [
        Spec(f"p{number}", url, str(directory), f"{directory.name}", targets, lease, threads=1, tasks=1, look=0.0)
        for number in range(procs)
    ]


def loaded(crowd: Crowd, more: int = 30) -> None:
    """Until so many more were granted."""
    before = crowd.grants()
    crowd.until(lambda: crowd.grants() > before + more, f"{more} more grants")


def left(url: str, within: float = 15) -> list[str]:
    """The lines in which somebody stands, though everybody has closed."""
    found: list[str] = []

    def empty() -> bool:
        with closing(dibs.connect(url)) as client:
            found[:] = [info.name for info in client.locks()]
        return not found

    with suppress(AssertionError):
        until(empty, within, "nothing is left")
    return found


def slot_of(name: str) -> int:
    """Of a cluster, where its line is."""
    return int(key_slot(key_of(name).encode()))


def in_slots(wanted: set[int], stem: str, shape: str = "{}") -> str:
    """A name whose line is in one of these."""
    names = (shape.format(f"{stem}-{number}") for number in range(100_000))
    return next(name for name in names if slot_of(name) in wanted)


def slots(node: Server) -> set[int]:
    """Those that it has, as it says itself; a replica has none."""
    mine = next(line for line in node.ask("CLUSTER", "NODES").splitlines() if "myself" in line)
    owned: set[int] = set()
    for word in mine.split()[8:]:
        first, _, last = word.partition("-")
        if first.isdigit():
            owned.update(range(int(first), int(last or first) + 1))
    return owned
