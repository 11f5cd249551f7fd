"""What every recipe does with the nodes of a claim: count them as its own, find them by its id, remove them."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.backends.zookeeper import shown
from dibs.backends.zookeeper.contenders import LEASES, LOCKS, REFUSE_AT, ROTATE_AT, number_of, parse, prefix_of
from dibs.backends.zookeeper.stands import Stand
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Node, refusal
from dibs.backends.zookeeper.wire.port import Port, checked
from dibs.backends.zookeeper.wire.session import Call
from dibs.backends.zookeeper.wire.watches import Watch
from dibs.core.deadline import FOREVER
from dibs.core.runtime import Runtime
from dibs.errors import Mismatch, StoreError, StoreUnavailable
from dibs.info import printable

GLANCES = 5
_PAUSE = 0.02


async def stood(port: Port, stand: Stand, created: Call, until: float) -> None:
    """Its node was made: it counts if it lives by the session that we have now, and numbers are not used up."""
    if created.error != codec.OK:
        stand.claim.asked = stand.doubtful = False  # the server said no: there is nothing to look for
        raise refusal(created.error)
    if stand.session is None:
        raise StoreUnavailable("the session ended meanwhile")
    if not 0 <= number_of(stand.place) < REFUSE_AT:
        await withdraw(port, stand, until)
        raise used_up(port, stand.place.rpartition("/")[0])
    stand.doubtful = False


def used_up(port: Port, directory: str) -> StoreError:
    """It is removed, if nobody stands there: else that is refused, and the next who leaves will."""
    port.wire.post(codec.delete(directory))
    return StoreError(
        "the sequence numbers of its directory are used up",
        step="try again when nobody holds it or waits for it",
    )


async def removed(port: Port, paths: Sequence[str], until: float, drop: Sequence[Watch] = ()) -> list[bool]:
    """Whether each was still there, as far as that is known. What is dropped first says nothing of it. An answer that
    was lost is asked for again as long as there is time: a connection that broke is mostly there again at once."""
    again = False
    while True:
        try:
            calls = await port.ask([codec.delete(path) for path in paths], until, drop=() if again else drop)
        except StoreUnavailable:
            if not port.may_ask_again(until):
                raise
            again = True
        else:
            return [checked(call, codec.NO_NODE) == codec.OK or again for call in calls]


def rotate(port: Port, path: str, directory: str) -> None:
    """With numbers as high as in `path`, have them begin again, if nobody else stands there: else it is refused."""
    if number_of(path) >= ROTATE_AT:
        port.wire.post(codec.delete(directory))


async def withdraw(port: Port, stand: Stand, until: float) -> None:
    """It is not to stand after all."""
    stand.gone = True
    await removed(port, stand.nodes, until)
    stand.claim.asked = False


async def own(
    port: Port, stand: Stand, directories: Sequence[str], until: float, since: float = FOREVER
) -> dict[str, Node]:
    """All that bear its id, by their paths; as they were after `since`."""
    shared = stand.queue.shared(
        "found", lambda: [codec.sync(stand.directory), *map(codec.children, directories)], listed=1
    )
    _, *listed = (await port.share(shared, until, since)).calls
    prefix = prefix_of(stand.claim.id)
    paths = [
        f"{directory}/{name}"
        for directory, call in zip(directories, listed, strict=True)
        for name in children_of(call)
        if name.startswith(prefix)
    ]
    calls = await port.ask([codec.get(path) for path in paths], until) if paths else []
    return {path: node for path, call in zip(paths, calls, strict=True) if (node := node_of(call)) is not None}


async def cleared(port: Port, stand: Stand, directories: Sequence[str], until: float) -> bool:
    """Remove whatever bears its id; False: nothing did."""
    found = await own(port, stand, directories, until)
    return bool(found) and any(await removed(port, list(found), until))


async def taken_over(port: Port, stand: Stand, found: dict[str, Node], kept: Sequence[str], until: float) -> bool:
    """After a lost answer: go on with these, remove the rest. False: nothing is left to go on with."""
    surplus = [path for path in found if path not in kept]
    if surplus:
        await removed(port, surplus, until)
    stand.doubtful = stand.changing = False
    if not kept:
        stand.gone = stand.session is not None
        return False
    stand.session, stand.nodes = port.wire.session, list(kept)
    stand.ticket = stand.claim.ticket = min(shown.ticket_of(found[path]) for path in kept)
    return True


def of_session(port: Port, found: dict[str, Node]) -> list[str]:
    """Those that live by the session that we have now: another one's go with it, or are removed."""
    return [path for path, node in found.items() if node.stat.owner == port.wire.session.id]


async def moment(runtime: Runtime, glance: int) -> None:
    """Between two glances at a node of another kind: it may be a try that is just leaving."""
    if glance + 1 < GLANCES:
        await runtime.sleep(_PAUSE)


def children_of(call: Call) -> list[str]:
    """None, if the directory is not there."""
    if checked(call, codec.NO_NODE):
        return []
    assert isinstance(call.value, list)
    return call.value


def node_of(call: Call) -> Node | None:
    if checked(call, codec.NO_NODE):
        return None
    assert isinstance(call.value, Node)
    return call.value


def mismatch(stand: Stand, foreign: str) -> Mismatch:
    found = parse(foreign)
    kind = "semaphore" if foreign in (LOCKS, LEASES) else None if found is None else found.kind
    if kind is None:
        return Mismatch(
            f"its directory holds {printable(foreign[:80])!r}, which belongs to no lock at this path",
            step="use this path for nothing else, and no path below it",
        )
    size = f" of {found.capacity}" if found is not None and kind == "striped" else ""
    own = f" of {stand.claim.capacity}" if stand.claim.kind in ("semaphore", "striped") else ""
    return busy_as(f"{kind}{size}", f"{stand.claim.kind}{own}")


def busy_as(there: str, wanted: str) -> Mismatch:
    return Mismatch(
        f"busy as {there}, not as {wanted}", step="use one kind and size for one name, or wait until its queue is empty"
    )
