"""Context managers that make a real server refuse for a while. Their name is in the text of the refusal."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

import psycopg

from lab.servers import ports
from lab.servers.programs import Refused, program
from lab.servers.supervisor import Server, until

KEYS, MICROSECONDS_EACH = 3_000, 10_000
Refusal = Callable[[Server], AbstractContextManager[None]]


@contextmanager
def setting(server: Server, name: str, value: str) -> Iterator[None]:
    _, _, before = server.ask("CONFIG", "GET", name).partition("\n")
    server.ask("CONFIG", "SET", name, value)
    try:
        yield
    finally:
        server.ask("CONFIG", "SET", name, before)


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """A script that never ends, until it is killed."""
    command = [program("redis-cli"), "-h", ports.HOST, "-p", str(server.port), "EVAL", "while true do end", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as script:
        try:
            until(lambda: refuses(server, "BUSY"), what="it is busy")
            yield
        finally:
            until(lambda: server.ask("SCRIPT", "KILL") == "OK" or script.poll() is not None, what="the script ends")
            script.wait(60)


@contextmanager
def readonly(server: Server) -> Iterator[None]:
    """A replica of a primary that is not there."""
    server.ask("REPLICAOF", ports.HOST, "1")
    try:
        yield
    finally:
        server.ask("REPLICAOF", "NO", "ONE")


def oom(server: Server) -> AbstractContextManager[None]:
    return setting(server, "maxmemory", "1")


@contextmanager
def loading(server: Server) -> Iterator[None]:
    """Restarted with keys whose loading takes half a minute; told to hurry at the end. It answers after each key: the
    keys are in RDB format, and each is larger than loading-process-events-interval-bytes."""
    server.ask(
        "EVAL", "for n = 1, ARGV[1] do redis.call('SET', 'key-' .. n, ('x'):rep(1024)) end", "0", str(KEYS)
    )  # fmt: skip
    server.ask("BGREWRITEAOF")
    until(lambda: "aof_rewrite_in_progress:0" in server.ask("INFO", "persistence"), what="it is rewritten")
    config = server.data / "redis.conf"
    text = config.read_text()
    config.write_text(text.replace("key-load-delay 0", f"key-load-delay {MICROSECONDS_EACH}"))
    try:
        server.kill()
        server.begin()
        until(lambda: refuses(server, "LOADING"), what="it loads")
        yield
    finally:
        config.write_text(text)
        server.ask("CONFIG", "SET", "key-load-delay", "0")
        server.serve()
        server.ask("EVAL", "for n = 1, ARGV[1] do redis.call('DEL', 'key-' .. n) end", "0", str(KEYS))


def refuses(server: Server, code: str, *words: str) -> bool:
    try:
        server.ask(*(words or ("GET", "a")))
    except Refused as error:
        return code in str(error)
    return False


@contextmanager
def read_only(server: Server) -> Iterator[None]:
    """The server acts as after an unnoticed fail-over. Each connection learns of the setting sooner or later."""

    def switch(value: str) -> None:
        server.ask(f"ALTER SYSTEM SET default_transaction_read_only = {value}", "SELECT pg_reload_conf()")
        until(lambda: server.ask("SHOW default_transaction_read_only") == value)

    switch("on")
    try:
        yield
    finally:
        switch("off")


@contextmanager
def too_many_connections(server: Server) -> Iterator[None]:
    """Others have them all. Ours are ended first, because a client keeps its connection."""
    server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^dibs'")
    with ExitStack() as taken:

        def take_one() -> Any:
            return taken.enter_context(closing(psycopg.connect(server.url())))

        try:
            while take_one():
                pass
        except psycopg.OperationalError:
            yield
