"""`doctor`: examine each server, its settings and its clock, write a key, and send and receive a message.

No claim is touched, and the only key that is made expires at once. diagnosis.py says what the facts mean. Managed
servers refuse CONFIG, and some users may not call INFO: then less is reported, with a note. A silent server is
reported, and the others are examined. It is an error only if no server answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from dibs.backends.redis import diagnosis, rights, scripts
from dibs.backends.redis.address import Endpoint
from dibs.backends.redis.connection import TIME
from dibs.backends.redis.context import Context
from dibs.backends.redis.diagnosis import Clock, Copy, Seen
from dibs.backends.redis.discovery import named
from dibs.backends.redis.errors import Refusal
from dibs.backends.redis.scripts import MICROSECONDS, Command, ScriptCall
from dibs.core.deadline import LEAST_PATIENCE
from dibs.core.queue import YOURS
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import Finding, printable

LEVELS = ("about", "promise", "note", "danger")
_TIMES = 3
_SETTINGS = ("appendfsync", "save")


async def examine(context: Context, until: float) -> list[Finding]:
    address, lease = context.address, context.identity.lease
    least = rights.least(address)
    try:
        seen, silent = await _primaries(context, until)
    except StoreError as error:
        if not _is_denied(error):
            raise
        return [Finding("danger", error.what, least)]
    tried = [*await _try_a_look(context, least, until), *await _try_a_write(context, least, until)]
    heard, unheard = await _try_a_message(context, [node.endpoint for node in seen], least, until)
    clocks, unreached = await _clocks(context, seen, until)
    apart = list(diagnosis.apart(clocks, lease))
    found = [
        *diagnosis.about(seen),
        *diagnosis.promises(
            seen, address.replicas, lease, heard=heard, ordered=not apart,
            sound=not (tried or silent or diagnosis.throws_away(seen)),
        ),
        *silent,
        *tried,
        *unheard,
        *diagnosis.of_each(seen, address),
        *await _cluster(context, seen, until),
        *apart,
        *diagnosis.adrift(seen, time.time() - context.runtime.now()),
        *unreached,
        *diagnosis.way(seen, lease),
        *diagnosis.reach(address, seen),
        *diagnosis.openness(address),
        Finding("note", "the minimal rights of a user here (+select for a database other than 0)", least),
    ]  # fmt: skip
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


async def _primaries(context: Context, until: float) -> tuple[list[Seen], list[Finding]]:
    """Those that answer, and what is to be said of those that do not."""
    seen: list[Seen] = []
    silent: dict[Endpoint, StoreUnavailable] = {}
    for endpoint in await context.executor.primaries(until):
        try:
            seen.append(await _look_at(context, endpoint, until))
        except StoreUnavailable as error:
            silent[endpoint] = error
    if not seen:
        raise next(iter(silent.values()), StoreUnavailable("no primary is known", step="check the servers"))
    return seen, [
        Finding(
            "danger", f"{named(endpoint)} does not answer ({error.what}): it grants and renews nothing",
            error.step or diagnosis.LOOK_THERE,
        )
        for endpoint, error in silent.items()
    ]  # fmt: skip


async def _look_at(context: Context, endpoint: Endpoint, until: float) -> Seen:
    async def ask(*words: str) -> object:
        return await context.executor.command_at(endpoint, Command(*words), _soon(context, until))

    facts = diagnosis.facts(await ask("INFO"))
    settings = {}
    for name in _SETTINGS:
        match await ask("CONFIG", "GET", name):
            case [_, bytes() as value]:
                settings[name] = value.decode(errors="replace")
    copies = [
        Copy(context.address.reachable(reply.endpoint), *reply[1:])
        for name, value in facts.items()
        if (reply := diagnosis.copy_of(name, value)) is not None
    ]
    return Seen(endpoint, facts, settings, await _clock(context, endpoint, until), copies)


async def _clock(context: Context, endpoint: Endpoint, until: float) -> Clock:
    """By the shortest of some ways there and back: the first one may have to connect."""
    now = context.runtime.now
    found: list[Clock] = []
    for _ in range(_TIMES):
        sent = now()
        reply = await context.executor.command_at(endpoint, TIME, _soon(context, until))
        if isinstance(reply, Refusal):
            raise StoreError(printable(reply.text))
        read, back = int(reply[0]) + int(reply[1]) / MICROSECONDS, now()
        found.append(Clock(read - back, read - sent, back - sent))
    return min(found, key=lambda clock: clock.took)


async def _clocks(context: Context, seen: list[Seen], until: float) -> tuple[dict[Endpoint, Clock], list[Finding]]:
    """Of the primaries and of their replicas; and what is to be said of replicas that could not be asked."""
    clocks = {node.endpoint: node.clock for node in seen}
    missing: list[Finding] = []
    for copy in [copy for node in seen for copy in node.copies if copy.is_online]:
        try:
            clocks[copy.endpoint] = await _clock(context, copy.endpoint, until)
        except StoreUnavailable as error:
            missing.append(
                Finding(
                    "note", f"the replica {named(copy.endpoint)} cannot be reached from here ({error.what}): its "
                    f"clock was not compared, and clients cannot reach it after a fail-over", "make every "
                    "server reachable for clients",
                )
            )  # fmt: skip
        except StoreError as error:
            missing.append(
                Finding(
                    "danger", f"the replica {named(copy.endpoint)} refuses the login ({error.what}): after a "
                    f"fail-over no client gets in", "create the same users and passwords there: they are not "
                    "replicated",
                )
            )  # fmt: skip
    return clocks, missing


async def _try_a_look(context: Context, least: str, until: float) -> list[Finding]:
    """The script that only reads."""
    try:
        await context.executor.ask(
            ScriptCall(scripts.LOOK, context.keys.queue("dibs:doctor"), ()), _soon(context, until)
        )
    except StoreError as error:
        return [_refused("no script can be run", error, least)]
    return []


async def _try_a_write(context: Context, least: str, until: float) -> list[Finding]:
    key = f"{context.address.prefix}dibs:doctor".encode()
    try:
        await context.executor.command(key, Command("SET", key, "", "PX", 1), _soon(context, until))
    except StoreError as error:
        return [_refused("no key can be written", error, least)]
    return []


async def _try_a_message(
    context: Context, endpoints: Iterable[Endpoint], least: str, until: float
) -> tuple[bool, list[Finding]]:
    """Sent to each server as scripts do, of a claim that there is not; heard where this client listens."""
    subscriber, inbox = context.subscriber, context.identity.inbox
    if subscriber is None:
        return False, [Finding("note", 'no messages, by wake="spin": waiters poll ten times a second')]
    id = context.runtime.fresh_id()
    inbox.expect(id)
    try:
        await subscriber.ready(_soon(context, until))
        for endpoint in endpoints:
            command = Command("PUBLISH", context.keys.client(context.identity.id), id + YOURS.value)
            reply = await context.executor.command_at(endpoint, command, _soon(context, until))
            if isinstance(reply, Refusal):
                raise StoreError(printable(reply.text))
            if await inbox.wait(id, _soon(context, until)) is None:
                raise StoreUnavailable(f"a message was sent at {named(endpoint)} and did not arrive")
    except StoreError as error:
        fix = least if _is_denied(error) else 'fix that, or use wake="spin"'
        what = f"waiters are not told that they hold, and must poll: {error.what}"
        return False, [Finding("danger", what, fix)]
    finally:
        inbox.forget(id)
    return True, []


async def _cluster(context: Context, seen: list[Seen], until: float) -> list[Finding]:
    if context.address.topology != "cluster" and seen[0].facts.get("cluster_enabled") != "1":
        return []
    reply = await context.executor.command_at(seen[0].endpoint, Command("CLUSTER", "INFO"), _soon(context, until))
    return list(diagnosis.cluster(diagnosis.facts(reply), context.address))


def _refused(what: str, error: StoreError, least: str) -> Finding:
    fix = least if _is_denied(error) else error.step or diagnosis.LOOK_THERE
    return Finding("danger", f"{what}: {error.what}", fix)


def _is_denied(error: StoreError) -> bool:
    """By the words of the server, which are others within a script."""
    return any(words in error.what for words in ("NOPERM", "no permissions", "can't run this command"))


def _soon(context: Context, until: float) -> float:
    return min(until, context.runtime.now() + LEAST_PATIENCE)
