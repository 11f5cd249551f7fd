"""`acme://name`: a store of somebody else's. What it keeps, it keeps in a memory store, behind queues of its own."""

from __future__ import annotations

from typing import Any, ClassVar

from dibs.backends.memory import MemoryStore
from dibs.core.queue import ClientIdentity
from dibs.core.runtime import Runtime
from dibs.url import Url, parse


class AcmeQueue:
    """Hands on what it does not do itself."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._queue, verb)


class AcmeStore:
    queue: ClassVar[type[AcmeQueue]] = AcmeQueue
    backend: ClassVar[str] = "acme"
    capabilities: ClassVar[frozenset[str]] = MemoryStore.capabilities

    def __init__(self, url: Url) -> None:
        self.shown = f"{url.scheme}://{url.host}"
        self._inner = MemoryStore(parse(f"memory://{url.scheme}.{url.host}"))

    def open(self, runtime: Runtime, me: ClientIdentity) -> Any:
        return self.queue(self._inner.open(runtime, me))

    def __getattr__(self, part: str) -> Any:
        return getattr(self._inner, part)
