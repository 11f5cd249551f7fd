"""What the rows on Redis run against, and beside: the server, the floor, and the locks that people use today.

`serving()` is a real server of the lab, alone, that keeps nothing on its disk. `two_scripts` is the floor, the least
that could work, on a bare socket: a script that sets a key if there is none and counts, a script that deletes it if it
is ours; it is no lock. `bare_messages` is the least that could wake another process: PUBLISH on one socket, the
message on another. A peer that waits on its socket gets a client without redis-py's time-out of 5 s.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from crew import Failed, together
from measure import Timed, timed

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from lab.servers import ports
from lab.servers.redis import Redis
from lab.servers.supervisor import Server

FLOOR, MESSAGE = "floor_two_scripts", "bare PUBLISH to message"
REDIS_PY, REDIS_LOCK, TOOZ, POTTERY = "redis-py Lock", "python-redis-lock", "tooz", "pottery Redlock"
LEASE = 30
_TAKE = """
if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then return redis.call('incr', KEYS[2]) end
return redis.call('pttl', KEYS[1])
"""
_GIVE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
_WHEN = struct.Struct("d")


@contextmanager
def serving() -> Iterator[Server]:
    with Server(Redis()) as server:
        with ExitStack() as stack:
            two_scripts(server.port, stack)(1000)  # or whoever comes first would find a cold server
        yield server


@contextmanager
def a_core_each(server: Server) -> Iterator[None]:
    """The server is kept off the core that the calling thread is kept on. Left to itself the kernel now and then puts
    both on one, where a round trip costs half: which of the two is measured would be luck."""
    cores = os.sched_getaffinity(0)
    mine = {min(cores)}
    if mine == cores:
        raise Failed("there is one core only")
    os.sched_setaffinity(server.pid, cores - mine)
    os.sched_setaffinity(0, mine)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        os.sched_setaffinity(server.pid, cores)


def url(port: int) -> str:
    return f"redis://{ports.HOST}:{port}"


class Bare:
    """A socket and a parser; one request, one answer."""

    def __init__(self, port: int) -> None:
        import hiredis

        self.socket = socket.create_connection((ports.HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = hiredis.Reader()

    def ask(self, *words: object) -> Any:
        return self.exchange(packed(*words))

    def exchange(self, request: bytes) -> Any:
        self.socket.sendall(request)
        return self.hear()

    def hear(self) -> Any:
        while (answer := self.reader.gets()) is False:
            self.reader.feed(self.socket.recv(4096))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.socket.close()


def packed(*words: object) -> bytes:
    raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in raw)


def two_scripts(port: int, stack: ExitStack) -> Timed:
    """The floor. Each answer fits what one recv gives: nothing is done that need not be."""
    bare = stack.enter_context(closing(Bare(port)))
    take, give = (bare.ask("SCRIPT", "LOAD", script) for script in (_TAKE, _GIVE))
    requests = packed("EVALSHA", take, 2, "{floor}", "{floor}:count", "me"), packed("EVALSHA", give, 1, "{floor}", "me")
    sock, reader = bare.socket, bare.reader

    def once() -> None:
        for request in requests:
            sock.sendall(request)
            reader.feed(sock.recv(4096))
            if reader.gets() is False:
                raise Failed("half an answer")

    return timed(once)


def pair_of(lock: Any) -> Timed:
    def once() -> None:
        lock.acquire()
        lock.release()

    return timed(once)


def redis_client(port: int, stack: ExitStack) -> Any:
    import redis

    return stack.enter_context(redis.Redis(ports.HOST, port, socket_timeout=None))


def redis_py_lock(port: int, stack: ExitStack) -> Any:
    return redis_client(port, stack).lock("redis-py", timeout=LEASE)


def python_redis_lock(port: int, stack: ExitStack) -> Any:
    import redis_lock

    return redis_lock.Lock(redis_client(port, stack), "python-redis-lock", expire=LEASE)


def tooz_lock(port: int, stack: ExitStack) -> Any:
    from tooz import coordination

    coordinator = coordination.get_coordinator(f"{url(port)}?timeout={LEASE}", b"bench")
    coordinator.start()
    stack.callback(coordinator.stop)
    return coordinator.get_lock(b"tooz")


def pottery_lock(servers: list[int], stack: ExitStack) -> Any:
    from pottery import Redlock

    masters = {redis_client(port, stack) for port in servers}
    return Redlock(key="pottery", masters=masters, auto_release_time=LEASE)


def dibs_lock(port: int, stack: ExitStack, name: str, **options: Any) -> Any:
    import dibs

    return stack.enter_context(dibs.connect(url(port))).lock(name, **options)


def bare_messages(port: int, turns: int) -> list[float]:
    """From just before PUBLISH is sent until the other of two processes has the message; it was asleep."""
    with mmap.mmap(-1, mmap.PAGESIZE) as shared:
        calls = [(port, me, shared, turns) for me in range(2)]
        return [gap for gaps in together(_throw, calls, patience=60.0) for gap in gaps]


def _throw(start: Callable[[], None], port: int, me: int, shared: mmap.mmap, turns: int) -> list[float]:
    clock, gaps = time.perf_counter, []
    with closing(Bare(port)) as ear, closing(Bare(port)) as mouth:
        ear.ask("SUBSCRIBE", f"bare-{me}")
        request = packed("PUBLISH", f"bare-{1 - me}", "x" * 40)
        start()
        for turn in range(turns * 2):
            if turn % 2 == me:
                time.sleep(0.005)
                _WHEN.pack_into(shared, 0, clock())
                mouth.exchange(request)
            else:
                ear.hear()
                now = clock()
                gaps.append(now - _WHEN.unpack_from(shared)[0])
    return gaps
