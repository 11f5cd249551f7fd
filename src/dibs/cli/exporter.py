"""`dibs exporter`: serve the figures of one or more stores to Prometheus, until SIGTERM or Ctrl-C.

A small HTTP/1.1 server on asyncio: one request per connection, GET and HEAD only. A connection that does not send its
request or read the reply in time is closed, and more than `_MOST` connections are refused. So slow clients cost a
descriptor each, for a while, and hold up nobody.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

from dibs.cli.options import Parser, add_server, cannot_listen, connect_each
from dibs.cli.output import OK, put
from dibs.monitor.exporter import TIMEOUT, TYPE, Exporter

PORT = 19808
_MOST = 500
"""Connections at a time. Many systems allow a process 1024 descriptors."""
_PATIENCE = 5.0
"""Seconds in which a client must have sent its request; and, again, in which it must have read the reply."""
_LONGEST_REQUEST = 16_384
_PAGE = '<!DOCTYPE html>\n<html lang="en"><title>dibs exporter</title><p><a href="metrics">Metrics</a></p></html>\n'


def parser() -> Parser:
    made = Parser(
        "exporter",
        description="Serve the figures of one or more stores to Prometheus, at /metrics, until SIGTERM or Ctrl-C.",
    )
    add_server(made, PORT)
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    with ExitStack() as stack:
        clients = [stack.enter_context(client) for client in connect_each(options, "exporter", retry=TIMEOUT)]
        asyncio.run(_serve(Exporter(clients), options))
    return OK


async def _serve(exporter: Exporter, options: argparse.Namespace) -> None:
    exchanges: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: asyncio 3.11 prints a traceback for each that is cancelled when the server ends."""
        if len(exchanges) >= _MOST:
            writer.transport.abort()
            return
        task = asyncio.create_task(_exchange(exporter, reader, writer))
        exchanges[task] = writer
        task.add_done_callback(lambda task: exchanges.pop(task).transport.abort())

    with _until_signalled() as stopped:
        try:
            server = await asyncio.start_server(accept, options.bind, options.port, limit=_LONGEST_REQUEST)
        except OSError as error:
            raise cannot_listen(options, error) from None
        for one in server.sockets:
            address, bound, *_ = one.getsockname()
            put(f"serving http://{f'[{address}]' if ':' in address else address}:{bound}/metrics")
        await stopped.wait()
        server.close()


@contextmanager
def _until_signalled() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stopped.set)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _exchange(exporter: Exporter, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
        method, path = _request(head)
        status, kind, text = await _reply(exporter, method, path)
        body = text.encode()
        lines = (
            f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff", "Connection: close", "\r\n",
        )  # fmt: skip
        async with asyncio.timeout(_PATIENCE):
            writer.write("\r\n".join(lines).encode() + (b"" if method == "HEAD" else body))
            writer.close()
            await writer.wait_closed()


def _request(head: bytes) -> tuple[str, str]:
    """The method and the path; both empty if it is not HTTP.

    >>> _request(b"GET /metrics?x=1 HTTP/1.1\\r\\n\\r\\n"), _request(b"hello\\r\\n\\r\\n")
    (('GET', '/metrics'), ('', ''))
    """
    words = head.partition(b"\r\n")[0].decode("ascii", "replace").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]


async def _reply(exporter: Exporter, method: str, path: str) -> tuple[str, str, str]:
    """The status, the type and the text."""
    plain = "text/plain; charset=utf-8"
    if not method:
        return "400 Bad Request", plain, "this is an HTTP server\n"
    if method not in ("GET", "HEAD"):
        return "405 Method Not Allowed", plain, "use GET\n"
    if path == "/metrics":
        return "200 OK", TYPE, await exporter.text()
    if path == "/-/healthy":
        return "200 OK", plain, "ok\n"
    if path == "/":
        return "200 OK", "text/html; charset=utf-8", _PAGE
    return "404 Not Found", plain, "see /metrics\n"
