"""Inject faults into a crowd of workers by a seeded schedule, always heal, and count only faults that happened.

A `Fault` begins now and returns its end and when that is due; one that cannot begin yet raises `NotNow`. Faults inside
the workers (a hogged interpreter, a fork, a cancelled call) are drawn by the workers, from `chances` of their spec.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from lab.crowd import Crowd
from lab.matrix import Site
from lab.servers.lone import Lone
from lab.servers.supervisor import Server
from lab.servers.zookeeper_ensemble import SILENCE_NOTICED, Ensemble
from lab.surface import clock


@dataclass(frozen=True)
class Place:
    crowd: Crowd
    dice: random.Random
    lease: float
    site: Site


class NotNow(Exception):
    """The fault cannot begin while another lasts; it is tried again later."""


Ending = tuple[float, Callable[[], None]]
"""After so many seconds, do this."""
Fault = Callable[[Place], Ending | None]


def kill(place: Place) -> Ending | None:
    """kill -9 of one or two workers, whatever they are doing; others take their places."""
    crowd = place.crowd
    victims = place.dice.sample(sorted(crowd.running), min(place.dice.choice((1, 1, 2)), len(crowd.running)))
    crowd.kill(*victims)
    for victim in victims:
        crowd.successor(victim)
    return None


def stop_briefly(place: Place) -> Ending | None:
    return _stop(place, place.dice.uniform(0.1, 0.6), "stopped for less than a lease")


def stop_past_the_lease(place: Place) -> Ending | None:
    return _stop(place, place.dice.uniform(1.1, 2.0), "stopped for more than a lease")


def _stop(place: Place, leases: float, fault: str) -> Ending | None:
    if not place.crowd.running:
        return None
    victim = place.dice.choice(sorted(place.crowd.running))
    place.crowd.stop(victim)
    return leases * place.lease, lambda: place.crowd.go_on(victim, fault)


def stand_still(place: Place) -> Ending | None:
    """A process stops in its transaction: nobody gets anything from the store."""
    path = place.site.path
    if path is None or not path.exists():
        return None
    pid = place.crowd.stand_still(path)
    return place.dice.uniform(0.2, 1.3) * place.lease, lambda: place.crowd.end_standstill(pid)


def kill_the_leader(place: Place) -> Ending | None:
    """kill -9; the others elect, and it comes back to follow."""
    ensemble = _whole(place)
    return _kill(place, ensemble.leader(), "leader killed")


def restart_a_node(place: Place) -> Ending | None:
    return _kill(place, place.dice.choice(_whole(place).nodes), "node restarted")


def stop_a_node(place: Place) -> Ending | None:
    ensemble = _whole(place)
    ensemble.stop(place.dice.choice(ensemble.nodes))
    return _mended(place, place.dice.uniform(0.2, 2.0) * place.lease, "node stopped")


def silence_a_node(place: Place) -> Ending | None:
    """It goes on answering pings, and hears nothing of what the others decide: followers more often than the leader."""
    ensemble = _whole(place)
    before = ensemble.lost()
    ensemble.silence(place.dice.choice([ensemble.leader(), *2 * ensemble.followers()]))

    def mend() -> None:
        if ensemble.lost() > before:
            place.crowd.fault("node silenced")
        ensemble.mend()

    return place.dice.uniform(0.5, 1.5) * (place.lease + SILENCE_NOTICED), mend


def cut_a_node_off(place: Place) -> Ending | None:
    ensemble = _whole(place)
    ensemble.cut_off(place.dice.choice(ensemble.nodes))
    return _mended(place, place.dice.uniform(0.2, 2.0) * place.lease, "node cut off")


def _kill(place: Place, node: Server, fault: str) -> Ending | None:
    _whole(place).kill(node)
    return _mended(place, place.dice.uniform(0.0, 1.5) * place.lease, fault)


def _mended(place: Place, after: float, fault: str) -> Ending:
    place.crowd.fault(fault)
    return after, _ensemble(place).mend


def _ensemble(place: Place) -> Ensemble:
    assert place.site.ensemble is not None, "this fault is for a store of several servers"
    return place.site.ensemble


def _whole(place: Place) -> Ensemble:
    """One fault at a time: two of three nodes must be able to agree."""
    if not (ensemble := _ensemble(place)).whole():
        raise NotNow
    return ensemble


def restart_the_server(place: Place) -> Ending | None:
    """kill -9; it comes back with everything that it acknowledged."""
    server = _serving(place)
    server.kill()
    place.crowd.fault("server restarted")
    return place.dice.uniform(0.0, 1.5) * place.lease, server.mend


def stop_the_server(place: Place) -> Ending | None:
    server = _serving(place)
    server.stop()
    place.crowd.fault("server stopped")
    return place.dice.uniform(0.2, 2.0) * place.lease, server.mend


def end_subscriptions(place: Place) -> Ending | None:
    """Waiters are not notified until they are connected again."""
    if _serving(place).end_connections("waiting"):
        place.crowd.fault("subscriptions ended")
    return None


def end_connections(place: Place) -> Ending | None:
    if _serving(place).end_connections("normal"):
        place.crowd.fault("connections ended")
    return None


def forget_scripts(place: Place) -> Ending | None:
    _serving(place).ask("SCRIPT", "FLUSH")
    place.crowd.fault("scripts forgotten")
    return None


def _serving(place: Place) -> Lone:
    server = place.site.lone
    assert server is not None, "this fault is for a store of one server"
    if not server.whole():
        raise NotNow
    return server


FAULTS: dict[str, Fault] = {
    "kill -9": kill,
    "stopped for less than a lease": stop_briefly,
    "stopped for more than a lease": stop_past_the_lease,
    "store at a standstill": stand_still,
    "leader killed": kill_the_leader,
    "node restarted": restart_a_node,
    "node stopped": stop_a_node,
    "node silenced": silence_a_node,
    "node cut off": cut_a_node_off,
    "server restarted": restart_the_server,
    "server stopped": stop_the_server,
    "subscriptions ended": end_subscriptions,
    "connections ended": end_connections,
    "scripts forgotten": forget_scripts,
}


class Nemesis:
    def __init__(self, place: Place, faults: dict[str, int], gap: float) -> None:
        """`faults`: the names of those that apply, and how often each comes; `gap`: the mean time between two."""
        self._place, self._faults, self._gap = place, faults, gap
        self._upcoming = place.dice.sample(sorted(faults), len(faults))
        self._endings: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def rage(self, seconds: float, each: float = 0.0) -> None:
        """Harm for so long, and for up to `each` seconds more until each fault has happened; then whatever still lasts
        ends, and all is healed."""
        end = clock() + seconds
        upcoming = clock() + self._gap
        try:
            while (now := clock()) < end or (now < end + each and self._faults.keys() - self._place.crowd.faults):
                self._end_what_is_due(now)
                if now >= upcoming:
                    self._begin()
                    upcoming = clock() + self._place.dice.expovariate(1 / self._gap)
                time.sleep(0.005)
        finally:
            self._end_what_is_due(float("inf"))
            self._place.crowd.heal()

    def _begin(self) -> None:
        """Each once, then as it comes."""
        if not self._upcoming:
            self._upcoming = self._place.dice.choices(list(self._faults), list(self._faults.values()), k=10)
        fault = self._upcoming.pop()
        try:
            ending = FAULTS[fault](self._place)
        except NotNow:
            self._upcoming.insert(0, fault)
            return
        if ending is not None:
            after, end = ending
            self._count += 1
            heapq.heappush(self._endings, (clock() + after, self._count, end))

    def _end_what_is_due(self, now: float) -> None:
        while self._endings and self._endings[0][0] <= now:
            heapq.heappop(self._endings)[2]()
