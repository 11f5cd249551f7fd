"""The common part of both APIs: types, and the arguments of `connect()` turned into a core client, without I/O."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeVar

from dibs.backends import caller_connection, make_quorum, make_store, make_store_of, transaction
from dibs.core.acquire import queue_grantor
from dibs.core.cells import Admits
from dibs.core.client import Client, MakeGrantor
from dibs.core.deadline import FOREVER, lease_of, seconds
from dibs.core.kinds.lock import Lock
from dibs.core.kinds.options import Unset, checked_info, checked_owner
from dibs.core.kinds.within import Within
from dibs.core.names import check
from dibs.core.queue import CELLS, FAIR, FOREIGN, LEASES, QUORUM, RECORDS, WITHIN, Store
from dibs.core.runtime import Runtime
from dibs.errors import Unsupported
from dibs.events import Observer
from dibs.info import printable, write_description
from dibs.info import show_command as command_to_show
from dibs.runtime import process
from dibs.url import parse

LONGEST_NAMESPACE = 128


class _Default(str):
    """A default that can be told from the same text given by a caller."""

    __slots__ = ()


NAMESPACE: str = _Default("dibs")
Seconds = float | timedelta
Timeout = float | timedelta | None | Unset


class Pooled(Protocol):
    """`redis.Redis` or `redis.asyncio.Redis`, also from a Sentinel."""

    @property
    def connection_pool(self) -> Any: ...


class Pool(Protocol):
    """A connection pool of redis-py."""

    @property
    def connection_kwargs(self) -> Any: ...


class Clustered(Protocol):
    """`redis.RedisCluster` or `redis.asyncio.RedisCluster`."""

    @property
    def nodes_manager(self) -> Any: ...


class Engine(Protocol):
    """A sync or async engine of SQLAlchemy."""

    @property
    def dialect(self) -> Any: ...

    @property
    def url(self) -> Any: ...


class PsycopgPool(Protocol):
    """A sync or async pool of psycopg_pool."""

    @property
    def min_size(self) -> Any: ...

    @property
    def max_size(self) -> Any: ...


Driver = Pooled | Pool | Clustered | Engine | PsycopgPool
"""An existing driver object; backends/__init__.py lists the accepted classes."""
Target = str | Driver | Sequence[str | Driver] | None
"""The first argument of `connect`: a URL, a driver, or several of them as a quorum."""
Connection = Any
"""An open connection of the caller; backends/__init__.py lists the accepted classes."""
ExcType = type[BaseException] | None
Raised = BaseException | None
Trace = TracebackType | None
H = TypeVar("H")


def members(locks: Sequence[object], one: type[Any], several: type[Any]) -> list[Lock]:
    """The core locks of the arguments of `multi`; a nested `multi` is flattened."""
    found: list[Lock] = []
    for lock in locks:
        if isinstance(lock, several):
            found += lock._core.locks
        elif isinstance(lock, one):
            found.append(lock._core)
        else:
            raise TypeError(f"multi takes locks of this API (dibs and dibs.aio do not mix), not {lock!r}")
    return found


def admits(within: Connection | None, *, awaits: bool) -> Admits | None:
    """The transaction of the caller, for a fence; None: use the client's store."""
    return None if within is None else transaction(within, awaits=awaits)


def enclosing(client: Client, connection: Connection, *, awaits: bool) -> Within:
    """The transaction of the caller, for locks."""
    client.require(WITHIN, "locks inside a transaction of yours (within)")  # first: then no connection will do
    return Within(client, caller_connection(connection, "connection", awaits))


def instant(timeout: Seconds | None, now: Callable[[], float]) -> float:
    return FOREVER if timeout is None else now() + seconds(timeout, "timeout")


def make_client(
    runtime: Runtime,
    url: object,
    *,
    lease: object,
    owner: object,
    info: object,
    namespace: object,
    retry: object,
    observer: object = None,
    store_options: Mapping[str, Any],
) -> Client:
    """Check all arguments, and make a client; its first use connects."""
    given = url if url is not None else os.environ.get("DIBS_URL") or None
    if given is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        raise Unsupported(
            "without a URL a lock only excludes processes on this machine, and pods run on many machines",
            step="set DIBS_URL to a store that all pods can reach",
        )
    try:
        store = _store(default_url() if given is None else given, dict(store_options))
    except ValueError as error:
        if url is not None or given is None:
            raise
        raise ValueError(f"{error} (the URL is that of DIBS_URL)") from None
    described = checked_info(info)
    is_shared = namespace is NAMESPACE and FOREIGN in store.capabilities
    space = "" if is_shared else _checked_namespace(namespace)
    identity = (login(), os.uname().nodename if hasattr(os, "uname") else "?", os.getpid())
    write_description(*identity, "", described)
    client = Client(
        store,
        runtime,
        lease=lease_of(lease),
        owner=checked_owner(owner),
        info=described,
        namespace=space,
        retry=seconds(retry, "retry"),
        identity=identity,
        note=" (this machine only)" if given is None else "",
        make_grantor=_make_grantor(store),
        observer=None if observer is None else _checked_observer(observer),
        show_step=partial(show_step, given, dict(store_options), NAMESPACE if namespace is NAMESPACE else space),
    )
    process.track(client)
    return client


def observe(observer: Observer) -> Callable[[], None]:
    """Report every event of all clients of this process, present and future, to an observer.

    The observer is called where the event happens, which may be a thread of dibs: it must be thread-safe, return at
    once and do no I/O. Its exceptions are logged, and change nothing. Holds that were acquired before it was added are
    not reported.

    Args:
        observer: A function, or an object that can be called, with one parameter, a `dibs.events.Event`.

    Returns:
        A function without parameters that ends the observation.

    Raises:
        TypeError: The observer cannot be called, or is a coroutine function.

    Example:
        >>> import dibs
        >>> seen = []
        >>> stop = dibs.observe(lambda event: seen.append(event.what))
        >>> with dibs.connect("memory://example") as client, client.lock("invoice:42"):
        ...     pass
        >>> stop()
        >>> seen
        ['acquired', 'released']
    """
    return process.observe(_checked_observer(observer))


def _checked_observer(observer: object) -> Observer:
    from inspect import iscoroutinefunction  # noqa: PLC0415  (a costly import)

    if not callable(observer) or iscoroutinefunction(observer) or iscoroutinefunction(type(observer).__call__):
        raise TypeError(f"an observer is a plain function with one parameter, the event, not {observer!r}")
    return observer


def _make_grantor(store: Store) -> MakeGrantor:
    if QUORUM in store.capabilities:
        from dibs.core.quorum.grantor import quorum_grantor  # noqa: PLC0415  (rarely needed)

        return quorum_grantor()
    return queue_grantor


def show_step(given: object, options: Mapping[str, Any], namespace: str, name: str) -> str | None:
    """The command that shows a lock from outside this process, if there is one, without a password.

    >>> show_step("redis://cache", {}, NAMESPACE, "invoice:42")
    'dibs show invoice:42 --url redis://cache'
    >>> show_step("postgresql://db/app", {"mode": "session"}, "shop", "invoice:42")
    "dibs show invoice:42 --url 'postgresql://db/app?mode=session' --namespace shop"
    >>> show_step("redis://:sesame@cache", {}, NAMESPACE, "invoice:42")
    'dibs show invoice:42 --url-file FILE (put the URL with its password into FILE)'
    >>> show_step("memory://", {}, NAMESPACE, "invoice:42") is None
    True
    """
    more = () if namespace is NAMESPACE else ("--namespace", namespace)
    if given is None:
        return command_to_show(name, *more)
    url = _with_options(given, options) if isinstance(given, str) else None
    if url is None:  # a driver, or several stores: there is no URL
        return f"look at client.inspect({name!r})"
    if url.lower().startswith("memory:"):
        return None
    if url == os.environ.get("DIBS_URL"):
        return command_to_show(name, *more)
    if has_secret(url):
        return command_to_show(name, "--url-file", "FILE", *more) + " (put the URL with its password into FILE)"
    return command_to_show(name, "--url", url, *more)


def _with_options(url: str, options: Mapping[str, Any]) -> str | None:
    """The URL with the options in its query; None: an option is an object."""
    from urllib.parse import quote  # noqa: PLC0415  (rarely needed)

    given = {key: value for key, value in options.items() if value is not None}
    if not all(isinstance(value, str | int | float) and not isinstance(value, bool) for value in given.values()):
        return None
    pairs = [f"{key}={quote(str(value))}" for key, value in given.items()]
    return "&".join([f"{url}{'&' if '?' in url else '?'}{pairs[0]}", *pairs[1:]]) if pairs else url


def _store(given: object, options: dict[str, Any]) -> Store:
    """The store of a URL, of a driver, or of several of them."""
    if isinstance(given, list | tuple):
        guard = options.pop("guard", None)
        return make_quorum([_store(member, dict(options)) for member in given], guard)
    return make_store(parse(given), options) if isinstance(given, str) else make_store_of(given, options)


_SECRET_WORDS = ("pass", "pwd", "secret", "token", "auth", "credential", "key")
"""Parts of the names of secret options."""
_LIBPQ_FILES = ("passfile", "sslkey", "require_auth")
_NOT_SECRET = {
    "postgres": _LIBPQ_FILES,
    "postgresql": _LIBPQ_FILES,
    "rediss": ("key",),
    "rediss+cluster": ("key",),
    "rediss+sentinel": ("key",),
    "zookeeper": ("auth", "key"),
    "zookeepers": ("auth", "key"),
}
"""Options that match `_SECRET_WORDS` and are not secret: a kind of login, or a file name."""


def has_secret(url: str) -> bool:
    """Whether a URL contains a password or another secret. An invalid URL with an @ counts as one."""
    try:
        found = parse(url)
    except ValueError:
        return "@" in url
    return found.password is not None or any(_is_secret(found.scheme, key) for key, _ in found.query)


def without_secret(url: str) -> str:
    """Remove passwords and other secrets from a URL; all else stays as written.

    >>> without_secret("redis://ana:pw@cache/0?ssl=1&password=pw")
    'redis://ana@cache/0?ssl=1'
    >>> without_secret("zookeepers://ana:pw@h1,h2/app?auth=sasl")
    'zookeepers://ana@h1,h2/app?auth=sasl'
    >>> without_secret("quorum+rediss://ana:pw@h1,h2,h3?key=ana.pem")
    'quorum+rediss://ana@h1,h2,h3?key=ana.pem'
    """
    parse(url)
    place, _, query = url.partition("?")
    scheme, sign, rest = place.partition("://")
    authority, slash, path = rest.partition("/")
    who, at, host = authority.rpartition("@")
    kept = [pair for pair in query.split("&") if pair and not _is_secret(scheme, pair.partition("=")[0])]
    return f"{scheme}{sign}{who.partition(':')[0]}{at}{host}{slash}{path}" + (f"?{'&'.join(kept)}" if kept else "")


def _is_secret(scheme: str, key: str) -> bool:
    from urllib.parse import unquote  # noqa: PLC0415  (not needed without a query)

    name, of_members = unquote(key).lower(), scheme.lower().removeprefix("quorum+")
    return name not in _NOT_SECRET.get(of_members, ()) and any(word in name for word in _SECRET_WORDS)


def place(client: Any) -> str:
    """The name of a client's store in texts, with a note if it is for this machine only."""
    return str(client._core.shown)


def not_shown(client: Any) -> list[str]:
    """What a look at the store of a client cannot show, in words for people.

    >>> import dibs
    >>> not_shown(dibs.connect("zookeeper://localhost"))
    ['the lease left of a hold']
    """
    capabilities = client._core.store.capabilities
    if FOREIGN in capabilities:
        return [
            "hosts and processes", "the age of a hold", "the waiters of a lock that is not fair",
            "the holders of a semaphore whose permits have no lease",
        ]  # fmt: skip
    limits = {
        "waiters": FAIR not in capabilities,
        "the lease left of a hold": LEASES not in capabilities,
        "the token of a waiter": RECORDS not in capabilities,
        "info and threads": RECORDS not in capabilities and backend(client) == "postgresql",
        "locks inside a transaction (within)": WITHIN in capabilities,
        "who broke a lock": CELLS not in capabilities,
    }
    return [what for what, applies in limits.items() if applies]


def backend(client: Any) -> str:
    """The kind of store, as in events: `redis`, `quorum`."""
    return str(client._core.store.backend)


def show_command(client: Any, name: str) -> str | None:
    """The command that shows a lock of this client in a shell; None: there is none."""
    step: str | None = client._core.show_step(name)
    return step


def break_option(client: Any) -> str:
    """The option of `dibs break` that names a holder of this store: `--token` or `--holder`."""
    return "--holder" if FOREIGN in client._core.store.capabilities else "--token"


def statements(client: Any) -> str:
    """The statements that create the tables of a client's store; empty if it needs none."""
    made: str = client._core.ddl()
    return made


def default_url() -> str:
    """The URL of the embedded store: one file for this user on this machine, in the XDG state directory."""
    from urllib.parse import quote  # noqa: PLC0415  (not needed if a store is named)

    state = os.environ.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        home = os.environ.get("HOME") or _home()
        if not (home.startswith("/") and os.path.isdir(home)):  # noqa: PTH112  (pathlib is slow to import)
            raise Unsupported(
                f"the embedded store needs a home directory: {printable(home) or 'none is known'}",
                step="set DIBS_URL=sqlite:////your/path/locks.db, or XDG_STATE_HOME",
            )
        state = f"{home}/.local/state"
    try:
        return f"sqlite:///{quote(state)}/dibs/locks.db?default=1"
    except UnicodeEncodeError:
        raise Unsupported(
            "the path of the home directory is not UTF-8", step="set DIBS_URL or XDG_STATE_HOME"
        ) from None


def _home() -> str:
    """The home directory in the user database; empty if there is none."""
    if sys.platform == "win32":
        return os.path.expanduser("~")  # noqa: PTH111  (pathlib is slow to import)
    import pwd  # noqa: PLC0415  (not on Windows)

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def _checked_namespace(namespace: object) -> str:
    if namespace == "":
        return ""
    if len(check(namespace).encode()) > LONGEST_NAMESPACE:
        raise ValueError(f"a namespace is at most {LONGEST_NAMESPACE} bytes long")
    return str(namespace)


def login() -> str:
    """The login name, a label for others, never a credential."""
    if sys.platform != "win32":
        import pwd  # noqa: PLC0415  (not on Windows)

        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return f"uid {os.getuid()}"
    return os.environ.get("USERNAME", "?")
