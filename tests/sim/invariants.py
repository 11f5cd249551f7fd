"""The invariants after every step of a schedule. `Watcher` sees what users have in their hands, what the server is
asked and answers, and compares; it changes nothing and asks no clock but the nodes'.

In hands: a hold from the step in which acquire returned it until its release is called or its process dies. It is valid
while its grant is held and its node's clock shows less than its deadline, `max_hold` included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dibs.core.deadline import FOREVER
from dibs.core.grants import HELD, Grant, Hold
from dibs.core.queue import ClientIdentity
from dibs.core.rule import Claim, Entry, head
from sim.clockwork import Node, Sim

if TYPE_CHECKING:
    from sim.network import Server

PROMPT = 0.05
"""In quiet times: how long a claim may hold in the store without its process knowing."""


class Violation(AssertionError):
    """Something that must always be true was not."""

    trace: list[tuple[float, str, str]] | None = None


class Use:
    """One grant in a process's hands."""

    __slots__ = ("dead", "grant", "holds", "id", "name", "node")

    def __init__(self, node: Node, grant: Grant) -> None:
        assert grant.claim is not None
        self.node = node
        self.grant = grant
        self.id = grant.claim.id
        self.name = grant.request.name
        self.holds: list[Hold] = []
        self.dead = False
        """It was seen invalid: it must stay so."""

    def weight(self) -> int:
        """The weight of its valid holds."""
        if self.grant.state is not HELD:
            return 0
        now = self.node.now()
        if now >= self.grant.until:
            return 0
        heaviest = 0
        for hold in self.holds:
            if hold.weight > heaviest and now < hold.ends_at:
                heaviest = hold.weight
        return heaviest


class Watcher:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._server: Server
        self.hands: dict[Grant, Use] = {}
        self.left_ids: set[bytes] = set()
        self.highest: dict[str, int] = {}
        self.tokens: dict[tuple[str, int], Grant] = {}
        self.stepped = False
        self.overlaps_after_steps = 0
        self.handed = 0
        self.quiet = False
        self._broken: set[int] = set()
        """Tickets of claims that an operator took away: only their tokens protect now."""
        self._untold: dict[bytes, float] = {}
        """Claims that hold in the store without their process knowing, and since when."""
        self._exempt: set[bytes] = set()
        self._due = 0.0
        """Until then nothing changes about what is valid, unless somebody takes something: deadlines only rise."""
        self._watchdogs: dict[bytes, tuple[Node, dict[bytes, Grant]]] = {}

    def meet(self, server: Server) -> None:
        self._server = server

    # What users have.

    def taken(self, node: Node, hold: Hold) -> None:
        """Acquire returned it in this very step."""
        grant = hold.grant
        assert grant is not None
        use = self.hands.get(grant)
        if use is None:
            use = self.hands[grant] = Use(node, grant)
            self._check_token(grant, hold)
        use.holds.append(hold)
        self.handed += 1
        self._due = 0.0
        if self._sim.trace is not None:
            self._sim.note(node.name, f"took {hold.name} token {hold.token} weight {hold.weight}")
        if not use.weight():
            self._fail(f"{node.name}: acquire returned a hold of {hold.name} that was over already")

    def given(self, hold: Hold) -> None:
        """Its release is about to be called."""
        assert hold.grant is not None
        use = self.hands.get(hold.grant)
        if use is not None and hold in use.holds:
            use.holds.remove(hold)
            if not use.holds:
                del self.hands[hold.grant]
            if self._sim.trace is not None:
                self._sim.note(use.node.name, f"gives {hold.name} token {hold.token} back")

    def died(self, node: Node) -> None:
        for grant, use in list(self.hands.items()):
            if use.node is node:
                del self.hands[grant]

    def forked(self, node: Node, holds: Sequence[Hold]) -> None:
        for hold in holds:
            if not hold.is_lost():
                self._fail(f"{node.name}: a forked child holds {hold.name} like its parent")

    def keeps(self, node: Node, me: ClientIdentity, renewing: dict[bytes, Grant]) -> None:
        """Where a client's grants can be seen."""
        self._watchdogs[me.id] = (node, renewing)

    # What the server is asked.

    def renewing(self, claims: Sequence[Claim]) -> None:
        for use in self.hands.values():
            if use.dead and any(claim is use.grant.claim for claim in claims):
                self._fail(f"{use.node.name}: {use.name} was renewed past its own deadline")

    def before(self, verb: str, what: Any) -> list[Entry]:
        """A verb that removes: the queue as it stands."""
        if verb == "evict":
            return self._queue(what)
        for use in self.hands.values():
            if use.id == what.id and use.weight():
                self._fail(f"{what.name} left the queue while {use.node.name} holds it (token {use.grant.token})")
        return self._queue(what.name)

    def after(self, verb: str, what: Any, before: list[Entry] | None, answer: object) -> None:
        if self._sim.trace is not None:
            self._note_verb(verb, what, answer)
        if verb == "join":
            self._check_join(what)
        elif before:
            self._check_removed(verb, what, before)
        if self.quiet:
            for name in {claim.name: None for claim in what} if verb == "renew" else (getattr(what, "name", what),):
                self._look_who_holds(name)

    def becomes_quiet(self) -> None:
        """From now on whoever comes to hold must be told at once; signals of before may have been lost."""
        self.quiet = True
        for name in self._server.world.queues:
            self._look_who_holds(name)
        self._exempt.update(self._untold)
        self._untold.clear()

    def left(self, claim: Claim) -> None:
        """Its leave was answered: it must never stand anywhere again."""
        self.left_ids.add(claim.id)

    # After every step.

    def check(self) -> None:
        if self._sim.now >= self._due:
            self._check_hands()
        if self._untold:
            self._check_told()

    def _check_hands(self) -> None:
        valid, due = 0, FOREVER
        for use in self.hands.values():
            if not use.weight():
                use.dead = True
                due = 0.0  # it must not come to life again: looked at in every step
            elif use.dead and not self.stepped:
                self._fail(f"{use.node.name}: {use.name} is valid again after its deadline had passed")
            else:
                valid += 1
                due = min(due, use.node.globally(min(use.grant.until, use.grant.ends_at)))
        self._due = 0.0 if self.stepped else due
        if valid > 1:
            self._check_room()

    def _check_room(self) -> None:
        used: dict[str, int] = {}
        for use in self.hands.values():
            if use.grant.token not in self._broken:
                used[use.name] = total = used.get(use.name, 0) + use.weight()
                if total > use.grant.request.capacity:
                    self._overlap(use.name)

    def _overlap(self, name: str) -> None:
        if not self.stepped:
            self._fail(f"{name}: more valid holders than it has room for: {self._holders(name)}")
        self.overlaps_after_steps += 1

    def _holders(self, name: str) -> str:
        return ", ".join(
            f"{use.node.name} token {use.grant.token} for {use.grant.until - use.node.now():.3f} s more"
            for use in self.hands.values()
            if use.name == name and use.weight()
        )

    def _check_token(self, grant: Grant, hold: Hold) -> None:
        key = (hold.name, hold.token)
        if self.tokens.setdefault(key, grant) is not grant:
            self._fail(f"{hold.name}: token {hold.token} was given twice")
        highest = self.highest.get(hold.name, 0)
        excused = self.stepped or hold.token in self._broken
        if hold.weight == grant.request.capacity and hold.token <= highest and not excused:
            self._fail(f"{hold.name}: token {hold.token} after {highest}")
        self.highest[hold.name] = max(highest, hold.token)

    def may_stay(self, claim_id: bytes) -> bool:
        """A join that arrives after its leave counts if the store's clock was set back to before the join's `by`. It
        stands in the queue until its lease ends."""
        return self.stepped and claim_id in self.left_ids

    def _check_join(self, claim: Claim) -> None:
        if claim.id in self.left_ids and claim.id in self._server.world.places and not self.stepped:
            self._fail(f"{claim.name}: a ghost: a join that came after its leave was answered stands in the queue")
        if [entry.id for entry in self._queue(claim.name)].count(claim.id) > 1:
            self._fail(f"{claim.name}: one claim stands in the queue twice")

    def _check_removed(self, verb: str, what: Any, before: list[Entry]) -> None:
        now, there = self._server.node.now(), self._server.world.places
        for entry in before:
            if entry.id not in there and entry.until > now and (verb == "evict" or entry.id != what.id):
                if verb == "leave":
                    self._fail(f"a leave removed another's claim, ticket {entry.ticket}")
                self._broken.add(entry.ticket)

    def _queue(self, name: str) -> list[Entry]:
        return list(self._server.world.queues.get(name, {}).values())

    def _look_who_holds(self, name: str) -> None:
        queue, now = self._queue(name), self._server.node.now()
        if queue:
            for entry in head(queue, lambda entry: entry.until <= now).holding:
                if entry.id not in self._exempt and not self._knows(entry):
                    self._untold.setdefault(entry.id, self._sim.now)

    def _knows(self, entry: Entry) -> bool:
        """True as well if its process is gone, or no longer wants it."""
        node, renewing = self._watchdogs[entry.client]
        grant = renewing.get(entry.id)
        return node.dead or grant is None or grant.state is HELD

    def _check_told(self) -> None:
        for id, since in list(self._untold.items()):
            entry = self._server.world.places.get(id)
            if entry is None or self._knows(entry):
                del self._untold[id]
            elif self._sim.now - since > PROMPT:
                self._fail(f"ticket {entry.ticket} holds in the store since {since:.3f} and nobody told its process")

    def _note_verb(self, verb: str, what: Any, answer: object) -> None:
        claims = what if verb == "renew" else [what]
        which = ", ".join(f"{c.name}/{c.id.hex()[:4]}" if isinstance(c, Claim) else str(c) for c in claims)
        self._sim.note("store", f"{verb} {which} -> {_shown(answer)}")

    def _fail(self, what: str) -> None:
        raise Violation(f"{what} (at {self._sim.now:.4f} s, step {self._sim.steps})")


def _shown(answer: object) -> str:
    if isinstance(answer, list):
        return "[" + ", ".join(map(_shown, answer)) + "]"
    if answer is None or isinstance(answer, bool):
        return str(answer)
    if hasattr(answer, "ticket"):
        return f"ticket {answer.ticket} {'holds' if answer.holds else 'waits'} {answer.left:.3f} s"
    return str(answer)[:60]
