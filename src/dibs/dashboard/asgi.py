"""The ASGI app of the dashboard: a handful of routes, below any path.

The event loop computes no view: that happens in threads. Sampling starts with the first request, and ends some seconds
after the last one, or with the lifespan of the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlencode

import dibs
from dibs._shared import not_shown
from dibs.dashboard.breaking import MOST_BODY, break_lock
from dibs.dashboard.guard import HEADERS, Guard, Problem, Scope, header
from dibs.dashboard.streams import Watching, send_stream
from dibs.dashboard.threads import Threads
from dibs.dashboard.views import MOST_ROWS, Query, StoreViews, encode, name_of
from dibs.monitor.scan import SORTS, sync_clients

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
MOST_STREAMS = 200
MOST_BREAKS = 8
"""Breaks of one store at a time: more would wait for a store that hangs."""
_FIRST_SAMPLE = 20.0
"""Seconds that a request waits for the first sample of a store."""
_BODY_PATIENCE = 10.0
_LONGEST_PARAMETER = 4096
_LONGEST_VERSION = 18
"""Digits of a Last-Event-ID."""
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def app(
    *clients: dibs.Client,
    allow_break: bool = False,
    token: str | None = None,
    hosts: Collection[str] | None = None,
) -> Dashboard:
    """Make the dashboard as an ASGI app, to mount in FastAPI, Starlette or Django, or to run by itself.

    It shows everything in the store, so protect the path with the authentication of your app, or give a token. The
    clients are used in threads of their own; close them yourself.

    Args:
        clients: Clients of `dibs.connect`, one for each store to show.
        allow_break: Whether the page may take a lock away from its holder. The default is False.
        token: A secret that every request must have. None, the default: your app authenticates.
        hosts: The names by which browsers may reach the app, without ports; others get 421. None, the default: any,
            because the app in which this one is mounted decides.

    Raises:
        TypeError: A client is not one of `dibs.connect`: those of `dibs.aio` belong to an event loop.
        ValueError: There is no client, or the token is empty.

    Example:
        >>> import dibs, dibs.dashboard
        >>> dashboard = dibs.dashboard.app(dibs.connect("memory://example"))
        >>> dashboard
        <dashboard of memory://example>
    """
    checked = sync_clients(clients, "the dashboard")
    if token is not None and not token:
        raise ValueError("the token is empty")
    return Dashboard(checked, Guard(token, hosts), allow_break=allow_break)


class Dashboard:
    """An ASGI app: see `dibs.dashboard.app`."""

    def __init__(self, clients: Sequence[dibs.Client], guard: Guard, *, allow_break: bool) -> None:
        self._guard = guard
        self._allow_break = allow_break
        self._stores = {str(at): StoreViews(str(at), client) for at, client in enumerate(clients)}
        self._files = _static_files()
        self._watching: set[Watching] = set()
        """The open streams."""
        self._threads = Threads("dibs-dashboard", 2)
        self._breaking = {id: Threads("dibs-break", 1) for id in self._stores}
        self._routes: dict[str, Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            "": self._page,
            "api/stores": self._list_stores,
            "api/view": self._view,
            "api/lock": self._lock,
            "api/stream": self._stream,
        }

    def __repr__(self) -> str:
        return f"<dashboard of {', '.join(store.name for store in self._stores.values())}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            try:
                await self._answer(scope, receive, send)
            except Problem as problem:
                await _send_problem(scope, send, problem.status, str(problem))

    def end_streams(self) -> None:
        """End all streams, so that a server that waits for open answers can stop. Browsers connect again."""
        for watching in list(self._watching):
            watching.close()

    def close(self) -> None:
        """End the streams and the sampling, if the host sends no lifespan events to mounted apps. A later request
        starts the sampling again."""
        self.end_streams()
        for store in self._stores.values():
            store.sampler.close()
        self._threads.close()
        for threads in self._breaking.values():
            threads.close()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            event = (await receive())["type"]
            if event == "lifespan.shutdown":
                await asyncio.to_thread(self.close)
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = _path(scope), scope["method"]
        if not self._guard.knows_host(scope):
            raise Problem(421, "this server does not have that name (see the option hosts)")
        if not self._guard.admits(scope):
            await self._admit(scope, send)
        elif path is None:
            target = f"./{scope.get('root_path', '').rsplit('/', 1)[-1]}/"
            await _send(scope, send, 307, "text/plain", b"", [(b"location", target.encode("latin-1", "replace"))])
        elif path.startswith("api/") and self._guard.is_cross_site(scope):
            raise Problem(403, "the request comes from another site")
        elif path == "api/break":
            await self._break(scope, receive, send)
        elif method not in ("GET", "HEAD"):
            raise Problem(405, "only GET and HEAD are possible here")
        elif path in self._routes:
            await self._routes[path](scope, receive, send)
        elif path in self._files:
            await _send(scope, send, 200, *self._files[path])
        else:
            raise Problem(404, "there is nothing here")

    async def _admit(self, scope: Scope, send: Send) -> None:
        """Let a browser in that brings the token in its URL; the token goes into a cookie, and out of the URL."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"))
        given = next((value for key, value in pairs if key == "token"), "")
        if _path(scope) == "" and scope["method"] == "GET" and self._guard.is_token(given):
            rest = urlencode([(key, value) for key, value in pairs if key != "token"])
            more = [
                (b"location", f"./{'?' if rest else ''}{rest}".encode()),
                (b"set-cookie", self._guard.set_cookie(scope).encode("latin-1")),
            ]
            await _send(scope, send, 303, "text/plain", b"", more)
            return
        text = b"This dashboard needs a token. Open the URL that dibs dashboard printed.\n"
        await _send(scope, send, 401, "text/plain; charset=utf-8", text, [(b"www-authenticate", b"Bearer")])

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._guard.is_cross_site(scope):
            for store in self._stores.values():  # the first rows are read while the browser loads the rest of the page
                store.sampler.want()
        await _send(scope, send, 200, *self._files[""])

    async def _list_stores(self, scope: Scope, receive: Receive, send: Send) -> None:
        made = {
            "version": dibs.__version__,
            "allow_break": self._allow_break,
            "stores": [
                {"id": one.id, "name": one.name, "backend": one.backend, "limits": _limits(one.client)}
                for one in self._stores.values()
            ],
        }
        if self._allow_break:
            made["csrf"] = self._guard.csrf
        await _send_json(scope, send, 200, encode(made))

    async def _view(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _parameters(scope)
        store, query = self._store(given), _query(given)
        async with Watching(store, query, None, self._threads) as watching:
            await _first_sample(watching)
            await _send_json(scope, send, 200, (await watching.encoded(query)).body)

    async def _lock(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _parameters(scope)
        store, name = self._store(given), _key(given)
        if name is None:
            raise Problem(400, "the parameter key is missing")
        async with Watching(store, None, name, self._threads) as watching:
            await _first_sample(watching)
            await _send_json(scope, send, 200, (await watching.encoded(name)).body)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _parameters(scope)
        store, query, name = self._store(given), _query(given), _key(given)
        if len(self._watching) >= MOST_STREAMS:
            raise Problem(503, f"there are {MOST_STREAMS} streams already; close a page of the dashboard")
        given_id = header(scope, "last-event-id")
        last = int(given_id) if given_id.isdecimal() and len(given_id) <= _LONGEST_VERSION else None
        start = {
            "type": "http.response.start",
            "status": 200,
            "headers": [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"x-accel-buffering", b"no"),
                *HEADERS,
            ],
        }
        async with Watching(store, query, name, self._threads) as watching:
            self._watching.add(watching)
            try:
                await send(start)
                if scope["method"] == "HEAD":
                    await send({"type": "http.response.body", "body": b""})
                else:
                    await send_stream(watching, receive, send, last)
            finally:
                self._watching.discard(watching)

    async def _break(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._allow_break:
            raise Problem(404, "this dashboard cannot break locks (see allow_break)")
        if scope["method"] != "POST":
            raise Problem(405, "api/break takes POST only")
        why = self._guard.may_change(scope)
        if why is not None:
            raise Problem(403, why)
        body = await _body(receive)
        try:
            given = json.loads(body)
            store = self._stores[str(given["store"])]
            name, token, reason = name_of(str(given["key"])), given["token"], given["reason"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Problem(400, "the body must be JSON with store, key, token and reason") from None
        threads = self._breaking[store.id]
        if threads.under_way >= MOST_BREAKS:
            raise Problem(503, "other breaks wait for the store; nothing was changed")
        done = await threads.run(break_lock, store, name, token, reason, scope.get("client"))
        await _send_json(scope, send, 200, encode({"done": done}))

    def _store(self, given: dict[str, str]) -> StoreViews:
        found = self._stores.get(given.get("store", "0"))
        if found is None:
            raise Problem(404, "there is no such store")
        return found


def _limits(client: dibs.Client) -> list[str]:
    """Sentences about what this store cannot show."""
    outside = "Tries (timeout=0) and unfair waiters are not in the queue, so they are not shown."
    return [outside, *(f"This store does not show {what}." for what in not_shown(client))]


def _static_files() -> dict[str, tuple[str, bytes]]:
    """All files, by path: a request can name no other."""
    found = {}
    for one in files("dibs.dashboard").joinpath("static").iterdir():
        kind = _TYPES.get(one.name.rpartition(".")[2])
        if kind is not None:
            found["" if one.name == "index.html" else f"static/{one.name}"] = (kind, one.read_bytes())
    return found


def _path(scope: Scope) -> str | None:
    """The path below the mount point, without a slash at its start; None: the mount point without its slash."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return path[1:] if path.startswith("/") else None


def _parameters(scope: Scope) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20
        )
    except ValueError:
        raise Problem(400, "the query is not valid") from None
    if any(len(value) > _LONGEST_PARAMETER for _, value in pairs):
        raise Problem(400, f"a parameter has more than {_LONGEST_PARAMETER} characters")
    return dict(pairs)


def _query(given: dict[str, str]) -> Query:
    sort = given.get("sort") or SORTS[0]
    if sort not in SORTS:
        raise Problem(400, f"sort must be one of {', '.join(SORTS)}")
    offset, limit = _number(given, "offset", 0, 0, 10**9), _number(given, "limit", 60, 1, MOST_ROWS)
    return Query(given.get("find", ""), given.get("prefix", ""), sort, offset, limit)


def _number(given: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = given.get(name) or str(default)
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and least <= int(text) <= most):
        raise Problem(400, f"{name} must be a number from {least} to {most}")
    return int(text)


def _key(given: dict[str, str]) -> str | None:
    if not given.get("key"):
        return None
    try:
        return name_of(given["key"])
    except ValueError:
        raise Problem(400, "key is not that of a lock") from None


async def _first_sample(watching: Watching) -> None:
    """An empty view would say that nothing is held."""
    await watching.sampled(_FIRST_SAMPLE)
    if not watching.ready:
        raise Problem(503, f"{watching.store.name} has not answered yet; the page asks again")


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_PATIENCE):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem(400, "the body is not complete")
                body += message.get("body", b"")
                if len(body) > MOST_BODY:
                    raise Problem(413, f"the body has more than {MOST_BODY} bytes")
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise Problem(408, "the body did not arrive in time") from None


async def _send_json(scope: Scope, send: Send, status: int, body: bytes) -> None:
    await _send(scope, send, status, "application/json", body)


async def _send_problem(scope: Scope, send: Send, status: int, text: str) -> None:
    await _send_json(scope, send, status, encode({"error": text}))


async def _send(scope: Scope, send: Send, status: int, kind: str, body: bytes, more: Headers = ()) -> None:
    sized = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*sized, *HEADERS, *more]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
