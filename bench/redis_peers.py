"""Peers on Redis: the floor, a bare message, and the locks that people use today.

The floor is the least work that could do the job, on a bare socket: a script that sets a key if there is none and
counts, a script that deletes it if it is ours. It is no lock. The bare message is PUBLISH on one socket and its arrival
on another. A peer that waits on its socket gets a client without redis-py's timeout of 5 s.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

from crew import Failed, Side, one_way
from measure import Timed, timed

FLOOR, MESSAGE = "floor_two_scripts", "bare PUBLISH to message"
REDIS_PY, REDIS_LOCK, TOOZ, POTTERY = "redis-py Lock", "python-redis-lock", "tooz", "pottery Redlock"
LEASE = 30
_TAKE = """
if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then return redis.call('incr', KEYS[2]) end
return redis.call('pttl', KEYS[1])
"""
_GIVE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class Bare:
    """A socket and a parser; one request, one reply."""

    def __init__(self, url: str) -> None:
        import hiredis

        self.socket = socket.create_connection(address(url))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = hiredis.Reader()

    def ask(self, *words: object) -> Any:
        return self.exchange(packed(*words))

    def exchange(self, request: bytes) -> Any:
        self.socket.sendall(request)
        return self.hear()

    def hear(self) -> Any:
        while (reply := self.reader.gets()) is False:
            self.reader.feed(self.socket.recv(4096))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        self.socket.close()


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


def packed(*words: object) -> bytes:
    raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in raw)


def two_scripts(url: str, stack: ExitStack) -> Timed:
    """The floor. Each reply fits what one recv returns."""
    bare = stack.enter_context(closing(Bare(url)))
    take, give = (bare.ask("SCRIPT", "LOAD", script) for script in (_TAKE, _GIVE))
    requests = packed("EVALSHA", take, 2, "{floor}", "{floor}:count", "me"), packed("EVALSHA", give, 1, "{floor}", "me")
    sock, reader = bare.socket, bare.reader

    def once() -> None:
        for request in requests:
            sock.sendall(request)
            reader.feed(sock.recv(4096))
            if reader.gets() is False:
                raise Failed("half a reply")

    return timed(once)


def redis_client(url: str, stack: ExitStack) -> Any:
    import redis

    return stack.enter_context(redis.Redis(*address(url), socket_timeout=None))


def redis_py_lock(url: str, stack: ExitStack) -> Any:
    return redis_client(url, stack).lock("redis-py", timeout=LEASE)


def python_redis_lock(url: str, stack: ExitStack) -> Any:
    import redis_lock

    return redis_lock.Lock(redis_client(url, stack), "python-redis-lock", expire=LEASE)


def tooz_lock(url: str, stack: ExitStack) -> Any:
    from tooz import coordination

    host, port = address(url)
    coordinator = coordination.get_coordinator(f"redis://{host}:{port}?timeout={LEASE}", b"bench")
    coordinator.start()
    stack.callback(coordinator.stop)
    return coordinator.get_lock(b"tooz")


def pottery_lock(urls: list[str], stack: ExitStack) -> Any:
    from pottery import Redlock

    return Redlock(key="pottery", masters={redis_client(url, stack) for url in urls}, auto_release_time=LEASE)


def bare_messages(url: str, turns: int) -> list[float]:
    def side(me: int, stack: ExitStack) -> Side:
        subscribed, other = (stack.enter_context(closing(Bare(url))) for _ in range(2))
        subscribed.ask("SUBSCRIBE", f"bare-{me}")
        request = packed("PUBLISH", f"bare-{1 - me}", "x" * 40)
        return lambda: other.exchange(request), subscribed.hear, lambda: None

    return one_way(side, turns)
