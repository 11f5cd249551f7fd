"""Waiting for a change of what others change: a line's leader, a cell. Who watches is noted in the server, and told by
whoever makes the change; nobody need say that it watches no longer: the next who watches strikes it out.
"""

from __future__ import annotations

from collections import deque

from dibs.backends.mysql.calls import MICROSECONDS, Call
from dibs.backends.mysql.executor import MysqlExecutor, number, row
from dibs.backends.mysql.subscriber import MysqlSubscriber
from dibs.core.cells import Spot
from dibs.core.line import Me
from dibs.core.runtime import Runtime

_MOST = 100
_REMEMBERED = 60.0
"""Seconds that a watcher stands at most: none watches for longer."""
GLANCE = 2.0
"""How often who watches looks by itself, should it not be told."""


class Watching:
    def __init__(self, port: MysqlExecutor, ear: MysqlSubscriber, runtime: Runtime, me: Me, over: deque[bytes]) -> None:
        """`over`: keys that need not be told any more; those of all ways to the store."""
        self._port = port
        self._ear = ear
        self._runtime = runtime
        self._me = me
        self._over = over

    async def watch(self, spot: Spot, name: bytes, seen: int, key: bytes, until: float) -> None:
        """Until it is not at `seen`, or somebody says so, or a while has passed."""
        now = self._runtime.now()
        over = [self._over.popleft() for _ in range(min(len(self._over), _MOST))]
        patience = int(min(until - now + 1, _REMEMBERED) * MICROSECONDS)
        call = Call("watch", (spot.space, name, key, self._me.id, patience, b"".join(over)))
        self._ear.listen(key)
        try:
            _, there, left = map(number, row(await self._port.ask(call, until), 3)[:3])
            if there == seen:
                by_itself = left / MICROSECONDS if left >= 0 else GLANCE
                await self._me.inbox.wait(key, min(until, self._runtime.now() + min(by_itself, GLANCE)))
        finally:
            self._ear.ignore(key)
            self._ear.forget(key)
            self._over.append(key)  # an interrupt awaits nothing
