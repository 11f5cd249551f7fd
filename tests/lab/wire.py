"""A server, a fault proxy before it that knows lines, and clients: what the proxy's tests are made of."""

from __future__ import annotations

from contextlib import ExitStack

from lab import splitters
from lab.peers import Client, Server, echo, nothing
from lab.proxy import Proxy


class Wire:
    """All of one test; they end with its stack."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.server = stack.enter_context(Server(echo))
        self.proxy = self.another()

    def another(self, seed: object = 0) -> Proxy:
        return self._stack.enter_context(Proxy(self.server.address, splitter=splitters.lines, seed=seed))

    def client(self, proxy: Proxy | None = None) -> Client:
        return self._stack.enter_context(Client((proxy or self.proxy).port))

    def newcomer_is_reset(self) -> bool:
        """While it connects, or just after."""
        try:
            return self.client().fate() == "reset"
        except ConnectionResetError:
            return True

    def silence(self) -> None:
        """To connections from now on the server only listens."""
        self.server._answer = nothing
