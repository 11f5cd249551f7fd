"""`dibs dashboard`: the locks of one or more stores in a browser, until Ctrl-C.

It listens on loopback only. Everyone who reaches it sees all locks, so on any other address, and behind a proxy
(--host), it demands a token: a random one if none is given, in the URL that it prints. It changes nothing unless
--allow-break is given.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from types import FrameType

from dibs.cli.options import Parser, UsageError, add_server, cannot_listen, connect_each
from dibs.cli.output import OK, put, say
from dibs.cli.polling import POLL_TIMEOUT
from dibs.dashboard import Dashboard, app

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SHORTEST_TOKEN = 16
_MOST_CONNECTIONS = 500
_REQUEST_TIMEOUT = 20.0
"""Seconds in which a request must have arrived."""
_BACKLOG = 128
_SHUTDOWN_TIMEOUT = 3
"""Seconds that answers under way may take after a signal."""


def parser() -> Parser:
    made = Parser("dashboard", description="Show the locks of one or more stores in a browser, until Ctrl-C.")
    add_server(made, 8765)
    made.add_argument(
        "--host",
        metavar="NAME",
        action="append",
        default=[],
        help="a further name by which browsers reach it, as behind a proxy: a token is needed then; may be repeated",
    )
    made.add_argument("--token", metavar="T", help="a secret that browsers must have; auto: a random one")
    made.add_argument("--allow-break", action="store_true", help="let the page take locks away from their holders")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    need_uvicorn()
    token = _token(options)
    with ExitStack() as stack:
        clients = [stack.enter_context(client) for client in connect_each(options, "dashboard", retry=POLL_TIMEOUT)]
        listener = stack.enter_context(_listen(options))
        hosts = _hosts(listener.getsockname()[0], options)
        made = app(*clients, allow_break=options.allow_break, token=token, hosts=hosts)
        put(_url(listener, token))
        _serve(made, listener)
    return OK


def need_uvicorn() -> None:
    try:
        import uvicorn  # noqa: F401, PLC0415  (optional)
    except ImportError:
        raise UsageError("the dashboard needs uvicorn. Next: pip install 'dibs[dashboard]'") from None


def _token(options: argparse.Namespace) -> str | None:
    given: str | None = options.token
    if given == "auto" or (given is None and (options.host or not _is_loopback(options.bind))):
        return secrets.token_urlsafe(24)
    if given is not None and not (len(given) >= _SHORTEST_TOKEN and given.isascii() and given.isprintable()):
        raise UsageError(f"a token has at least {_SHORTEST_TOKEN} ASCII characters; --token auto makes one")
    return given


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ip_address(address).is_loopback
    return address == "localhost"


def _hosts(address: str, options: argparse.Namespace) -> list[str] | None:
    """The names by which a browser may ask. A wildcard address has any name; there the token protects."""
    return None if ip_address(address).is_unspecified else [*_LOOPBACK, address, options.bind, *options.host]


def _listen(options: argparse.Namespace) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.bind else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.bind, options.port))
        listener.listen(_BACKLOG)  # from here on the URL works
    except (OSError, UnicodeError) as error:
        listener.close()
        raise cannot_listen(options, getattr(error, "strerror", None) or error) from None
    return listener


def _url(listener: socket.socket, token: str | None) -> str:
    address, port = listener.getsockname()[:2]
    if ip_address(address).is_unspecified:
        address = socket.gethostname()
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}/" + (f"?token={token}" if token else "")


def _serve(made: Dashboard, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    import uvicorn  # noqa: PLC0415  (optional)
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Unlike uvicorn's, it does not raise the signal again afterwards: the clients are still to be closed."""
            made.end_streams()  # the server waits for open answers, and a stream has no end of its own
            self.force_exit = self.should_exit
            self.should_exit = True

    class Protocol(H11Protocol):
        """Closes a connection whose request does not arrive: uvicorn would wait for it for ever."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect()

        def _expect(self) -> None:
            self.loop.call_later(_REQUEST_TIMEOUT, self._check, self.cycle)

        def _check(self, before: object) -> None:
            if self.transport.is_closing():
                return
            if self.cycle is before and getattr(before, "response_complete", True):
                self.transport.close()
            else:
                self._expect()

    config = uvicorn.Config(
        made,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
        proxy_headers=False,
    )
    Server(config).run(sockets=[listener])
    say("stopped", command="dashboard")
