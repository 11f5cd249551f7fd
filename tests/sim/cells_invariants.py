"""Invariants of the shared primitives, of their waiters, and of the followers of an election.

`CellWatcher` sees every deed of a user from its call to its end, every change at the server with the deed that made it,
and who is waited for. What is done happened once, what is not done never, what is unknown at most once. Values of a
cell are the numbers of the deeds that wrote it, one behind the other, so that the value itself tells who wrote it. In
quiet times whoever waits for something, or follows, must know within `PROMPT`. It changes nothing and asks no clock but
the nodes'.
"""

from __future__ import annotations

from itertools import count

from dibs.backends.memory import World
from dibs.core.cells import FENCE, LATCH, CellKey, CellValue, Write, token_of
from dibs.core.deadline import FOREVER, LEAST_PATIENCE
from sim.clockwork import Node, Sim, Task
from sim.deeds import DONE, NOT_DONE, Deed, Following, Truth
from sim.invariants import PROMPT, Violation
from sim.world import POLL_INTERVAL

CALMED = 2.5
"""In quiet times: how long whoever has not looked since the last fault may take to do so."""
PAUSES = LEAST_PATIENCE + 0.5
"""How late an operation may end while faults happen: dibs asks a silent store for LEAST_PATIENCE, with pauses between
its requests."""
DRIFT = 0.1
"""How much of a length of time the clocks of a process and of the store may disagree by."""


class CellWatcher:
    def __init__(self, sim: Sim, world: World, store: Node) -> None:
        self._sim = sim
        self._world = world
        self._store = store
        self._doing: dict[Task, Deed | Following] = {}
        self._writes: dict[bytes, tuple[Deed, float, float]] = {}
        """By id: the deed, its last instant by its own clock, and the length that drift is computed from."""
        self._numbers = count()
        self._opened: dict[tuple[CellKey, int], float] = {}
        """Generations of latches, and when each has opened."""
        self._marks: dict[str, int] = {}
        """The highest exclusive token that each fence admitted."""
        self._elections: dict[CellKey, Truth] = {}
        self.stepped = False
        self.ended = 0
        self._quiet_since = FOREVER
        self._failed: Violation | None = None

    # What users do.

    def begins(self, node: Node, verb: str, cell_key: CellKey, amount: int = 0, timeout: float | None = None) -> Deed:
        deadline = FOREVER if timeout is None else node.now() + timeout
        deed = Deed(next(self._numbers), node, verb, cell_key, amount, deadline)
        assert self._sim.running is not None
        self._doing[self._sim.running] = deed
        if self._sim.trace is not None:
            self._sim.note(node.name, f"{verb} {cell_key.name} {amount or ''} begins, deed {deed.number}")
        return deed

    def ends(self, deed: Deed, outcome: str) -> None:
        """In the step in which the call ends."""
        self._let_go(deed)
        deed.outcome = outcome
        self.ended += 1
        if self._sim.trace is not None:
            self._sim.note(deed.node.name, f"{deed.verb} {deed.cell_key.name} is {outcome}, deed {deed.number}")
        if outcome is NOT_DONE and deed.made is not None:
            self._fail(f"{self._named(deed)} was reported as not done, and it happened")
        if outcome is DONE and deed.made is None and deed.verb in ("arm", "set", "update"):
            self._fail(f"{self._named(deed)} was reported as done, and it did not happen")

    def changed(self, deed: Deed, version: int) -> None:
        if version != deed.made:
            self._fail(f"{self._named(deed)} was told version {version} and made {deed.made}")

    def waited(self, deed: Deed, opened: bool) -> None:
        if deed.first is None:
            self._fail(f"{self._named(deed)} returned without a look")
        elif opened:
            if not self._is_through(deed):
                self._fail(f"{self._named(deed)} was let through and generation {deed.awaited} has not opened")
        elif deed.node.now() < deed.deadline:
            self._fail(f"{self._named(deed)} gave up before its time was over")
        elif not deed.unseen or not (deed.armed or deed.first[1]):
            self._fail(f"{self._named(deed)} gave up although it was open when it looked")

    def follows(self, node: Node, cell_key: CellKey) -> Following:
        following = Following(node, cell_key)
        assert self._sim.running is not None
        self._doing[self._sim.running] = following
        self._truth(cell_key)
        return following

    def follows_no_more(self, following: Following) -> None:
        self._let_go(following)

    def yields(self, following: Following, token: int) -> None:
        name, last = following.cell_key.name, following.last
        if self._sim.trace is not None:
            self._sim.note(following.node.name, f"sees token {token} lead {name}")
        if token == last:
            self._fail(f"{name}: token {token} was yielded twice in a row")
        if token not in self._truth(following.cell_key).led:
            self._fail(f"{name}: token {token} was yielded and never led")
        following.last = token

    # What a port does for the task that runs.

    def looks(self) -> None:
        """It asks the store, or to be told by it."""
        doing = self._doing.get(self._sim.running)  # type: ignore[arg-type]
        if doing is not None:
            if self._sim.now >= self._quiet_since:
                doing.calm_at = min(doing.calm_at, self._sim.now)
            if isinstance(doing, Deed) and doing.verb == "wait" and doing.first is not None:
                doing.unseen = not self._is_through(doing)

    def looked(self, cell_value: CellValue) -> None:
        deed = self._doing.get(self._sim.running)  # type: ignore[arg-type]
        if isinstance(deed, Deed) and deed.first is None and deed.cell_key.space == LATCH:
            deed.first = generation, left = _read(cell_value)
            deed.awaited = generation + (0 if left else 1)

    def writes(self, write: Write, reckoned_from: float) -> None:
        deed = self._doing.get(self._sim.running)  # type: ignore[arg-type]
        if isinstance(deed, Deed):
            self._writes.setdefault(write.id, (deed, write.by, write.by - reckoned_from))

    # What the server does.

    def put(self, write: Write, before: CellValue, version: int) -> None:
        if write.id not in self._writes:
            return
        deed, by, length = self._writes[write.id]
        after = self._world.cell(write.cell_key)
        if after == before:
            return
        if not before.version == write.version == after.version - 1 == version - 1:
            self._fail(f"{write.cell_key.name}: version {after.version} after {before.version}, for {write.version}")
        if deed.made is not None:
            self._fail(f"{self._named(deed)} happened twice")
        if deed.outcome is NOT_DONE:
            self._fail(f"{self._named(deed)} happened after it was reported as not done")
        if deed.node.now() > by + DRIFT * length and not self.stepped:
            self._fail(f"{self._named(deed)} happened {deed.node.now() - by:.3f} s after its last instant")
        deed.made = version
        if write.cell_key.space == LATCH:
            self._check_latch(deed, before, after)
        elif after.value != (before.value or b"") + deed.word():
            self._fail(f"{write.cell_key.name}: {after.value!r} was written over {before.value!r}")

    def admitted(self, name: str, token: int, shared: bool, before: CellValue, highest: int) -> None:
        mark = self._marks.get(name, 0)
        if token_of(before) != mark or highest != mark:
            self._fail(f"{name}: {highest} was answered when {mark} was the highest admitted")
        if not shared:
            self._marks[name] = mark = max(mark, token)
        if token_of(self._world.cell(CellKey(FENCE, name))) != mark:
            self._fail(f"{name}: the record is not {mark} after token {token} {'shared' if shared else 'exclusive'}")

    # After every step.

    def becomes_quiet(self) -> None:
        self._quiet_since = self._sim.now

    def check(self) -> None:
        if self._failed is not None:
            raise self._failed
        for truth in self._elections.values():
            truth.look(self._world, self._store.now(), self._sim.now)
        quiet = self._sim.now >= self._quiet_since
        for doing in self._doing.values():
            if isinstance(doing, Following):
                if quiet:
                    self._check_following(doing)
            else:
                if doing.deadline != FOREVER:
                    self._check_deadline(doing)
                if quiet and doing.verb == "wait":
                    self._check_wait(doing)

    def settled(self) -> bool:
        """Nobody is about to hear something that is true already."""
        return not any(self._owed(doing) for doing in self._doing.values())

    def finish(self) -> None:
        """Everybody is through, and all know what stands in the store."""
        for doing in self._doing.values():
            if self._owed(doing):
                self._fail(f"{doing.node.name}: nobody tells it of {doing.cell_key.name}")

    def _owed(self, doing: Deed | Following) -> bool:
        if doing.node.dead:
            return False
        if isinstance(doing, Following):
            return doing.last != self._elections[doing.cell_key].token
        return doing.first is None or self._is_through(doing)

    def _check_deadline(self, deed: Deed) -> None:
        late = deed.overdue()
        if late > PROMPT and not self.stepped:
            calm = deed.calm_at < deed.node.globally(deed.deadline)
            if calm or late > PAUSES:
                self._fail(f"{self._named(deed)} goes on {late:.3f} s after its time was over")

    def _check_wait(self, deed: Deed) -> None:
        since = self._opened.get((deed.cell_key, deed.awaited))
        if since is not None and deed.first is not None and self._is_late(deed, since, PROMPT):
            self._fail(f"{self._named(deed)}: generation {deed.awaited} opened at {since:.3f} s, and it still waits")

    def _check_following(self, following: Following) -> None:
        truth = self._elections[following.cell_key]
        enough = PROMPT if truth.told else POLL_INTERVAL + PROMPT
        if following.last != truth.token and self._is_late(following, truth.since, enough):
            self._fail(
                f"{following.cell_key.name}: {following.node.name} sees {following.last} lead,"
                f" and it is {truth.token} since {truth.since:.3f} s"
            )

    def _is_late(self, doing: Deed | Following, since: float, enough: float) -> bool:
        """In quiet times."""
        if doing.node.dead:
            return False
        if doing.calm_at == FOREVER:
            return self._sim.now - max(since, self._quiet_since) > CALMED
        return self._sim.now - max(since, doing.calm_at) > enough

    def _check_latch(self, deed: Deed, before: CellValue, after: CellValue) -> None:
        (generation, left), now = _read(before), _read(after)
        if deed.verb == "arm":
            if left:
                self._fail(f"{self._named(deed)}: it was armed with {left} to go")
            wanted = (generation + 1, deed.amount)
        else:
            if deed.first is None or deed.first[0] != generation or not left:
                self._fail(f"{self._named(deed)} began with {deed.first} and counted in generation {generation}")
            wanted = (generation, max(left - deed.amount, 0))
        if now != wanted:
            self._fail(f"{self._named(deed)} made {now} of {(generation, left)}")
        if not now[1]:
            self._opened[deed.cell_key, now[0]] = self._sim.now

    def _is_through(self, deed: Deed) -> bool:
        assert deed.first is not None
        return (not deed.armed and not deed.first[1]) or (deed.cell_key, deed.awaited) in self._opened

    def _truth(self, cell_key: CellKey) -> Truth:
        return self._elections.setdefault(cell_key, Truth(cell_key.name))

    def _let_go(self, doing: Deed | Following) -> None:
        for task, other in list(self._doing.items()):
            if other is doing:
                del self._doing[task]

    def _named(self, deed: Deed) -> str:
        return f"{deed.node.name}: {deed.verb} {deed.cell_key.name} (deed {deed.number})"

    def _fail(self, what: str) -> None:
        """Said again at the next look: in a user's task a `finally` may have put another error in its place."""
        self._failed = Violation(f"{what} (at {self._sim.now:.4f} s, step {self._sim.steps})")
        raise self._failed


def _read(cell_value: CellValue) -> tuple[int, int]:
    generation, left = map(int, (cell_value.value or b"0 0").split())
    return generation, left
