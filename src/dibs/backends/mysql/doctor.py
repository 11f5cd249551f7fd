"""What the store says of itself: the server is asked what it is and how it is set, its clock is read, the tables and
routines are looked for, somebody who watches is noted, told and woken. No claim is touched; what is noted for that is
gone a moment later. What all that means is said by diagnosis.py.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from dibs.backends.mysql import diagnosis, schema
from dibs.backends.mysql.address import Address
from dibs.backends.mysql.answers import DENIED, MISSING, final
from dibs.backends.mysql.calls import MICROSECONDS, Call, Query
from dibs.backends.mysql.diagnosis import Clock
from dibs.backends.mysql.executor import MysqlExecutor, number
from dibs.backends.mysql.subscriber import MysqlSubscriber
from dibs.backends.mysql.wire import Refusal, Sets
from dibs.core.deadline import LEAST_PATIENCE
from dibs.core.line import Me
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import Finding

LEVELS = ("about", "promise", "note", "danger")
_TIMES = 3
_TIME = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
_SETTINGS = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ({})"
_STATES = "SHOW GLOBAL STATUS WHERE Variable_name IN ('threads_connected', 'wsrep_cluster_size')"
_TABLES = (
    "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = {} AND table_name LIKE 'dibs\\_%'"
)
_ROUTINES = (
    "SELECT routine_name, sql_mode FROM information_schema.routines"
    " WHERE routine_schema = {} AND routine_name LIKE 'dibs\\_2\\_%'"
)
_TOLD = "UPDATE dibs_watchers SET told = 1 WHERE id = {}"
_GONE = "DELETE FROM dibs_watchers WHERE id = {}"


class Patient(NamedTuple):
    port: MysqlExecutor
    ear: MysqlSubscriber
    runtime: Runtime
    me: Me
    address: Address


async def examine(patient: Patient, until: float) -> list[Finding]:
    database = patient.address.database
    settings = _pairs(await _ask(patient, Query(_SETTINGS.format(diagnosis.SETTINGS)), until))
    states = _pairs(await _ask(patient, Query(_STATES), until))
    tables = _pairs(await _ask(patient, Query(_TABLES, database), until))
    routines = _pairs(await _ask(patient, Query(_ROUTINES, database), until))
    clock = await _clock(patient, until)
    missing = [name for name in schema.TABLES if f"dibs_{name}" not in tables]
    tried: list[Finding] = []
    if not missing:
        tried = await _try_a_wake(patient, until)
    found = [
        *diagnosis.about(settings),
        *diagnosis.promises(settings, patient.address.mode, sound=not tried),
        *tried,
        *diagnosis.laid(missing, tables, routines),
        *diagnosis.keeping(settings),
        *diagnosis.room(settings, states),
        *diagnosis.copies(settings, patient.address.mode),
        *diagnosis.clock(clock, time.time() - patient.runtime.now(), patient.me.lease),
        Finding("note", "waiters are woken only by programs that log in as the same user; otherwise they poll",
                "let all programs that share locks log in as one user"),
        Finding("note", "the minimal rights of a user here", diagnosis.RIGHTS),
    ]  # fmt: skip
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


async def _ask(patient: Patient, query: Query, until: float) -> Sets:
    return await patient.port.ask(query, min(until, patient.runtime.now() + LEAST_PATIENCE))


async def _clock(patient: Patient, until: float) -> Clock:
    """By the shortest of some ways there and back: the first one may have to connect."""
    now = patient.runtime.now
    found: list[Clock] = []
    for _ in range(_TIMES):
        sent = now()
        read = number((await _ask(patient, Query(_TIME), until))[0][0][0]) / MICROSECONDS
        back = now()
        found.append(Clock(read - back, read - sent, back - sent))
    return min(found, key=lambda clock: clock.took)


async def _try_a_wake(patient: Patient, until: float) -> list[Finding]:
    """Somebody who watches what nobody changes is told so, as by a change; heard where this client listens."""
    key, me, inbox = patient.runtime.fresh_id(), patient.me.id, patient.me.inbox
    soon = min(until, patient.runtime.now() + 2 * LEAST_PATIENCE)
    inbox.expect(key)
    patient.ear.listen(key)
    try:
        await patient.port.peek(Call("watch", ("doctor", b"dibs:doctor", key, me, 10 * MICROSECONDS, b"")), soon)
        await patient.port.peek(Query(_TOLD, key), soon)
        await patient.port.peek(Call("wake", (me,)), soon)
        heard = await inbox.wait(key, soon)
        await patient.port.peek(Query(_GONE, key), soon)
        if heard is None:
            raise StoreUnavailable("a message was sent and did not arrive")
    except Refusal as refusal:
        if refusal.code in MISSING:
            return []  # said by what is laid
        fix = diagnosis.RIGHTS if refusal.code in DENIED else diagnosis.LOOK_THERE
        return [Finding("danger", f"a routine cannot be used: {final(refusal).what}", fix)]
    except StoreError as error:
        what = f"waiters are not told that they hold, and must poll: {error.what}"
        return [Finding("danger", what, error.step or diagnosis.LOOK_THERE)]
    finally:
        patient.ear.ignore(key)
        patient.ear.forget(key)
        inbox.forget(key)
    return []


def _pairs(sets: Sets) -> dict[str, str]:
    return {
        (row[0] or b"").decode(errors="replace").lower(): (row[1] or b"").decode(errors="replace") for row in sets[0]
    }
