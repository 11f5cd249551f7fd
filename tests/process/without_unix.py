"""dibs without Unix: what Windows lacks is removed before dibs is imported. Prints the word "works"."""

from __future__ import annotations

# Other modules import it before it is gone.
import asyncio
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module

for driver in ("psycopg", "pymysql", "redis", "redis.asyncio", "redis.asyncio.sentinel", "redis.sentinel", "hiredis"):
    with suppress(ImportError):
        import_module(driver)
LOOP = asyncio.new_event_loop()

UNIX = {
    time: ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "CLOCK_REALTIME", "clock_gettime", "clock_gettime_ns", "tzset"),
    select: ("poll", "epoll"),
    signal: ("SIGHUP", "SIGKILL", "SIGALRM", "SIGUSR1", "SIGCHLD", "pthread_kill", "pthread_sigmask", "setitimer"),
    socket: ("AF_UNIX", "SO_REUSEPORT"),
    os: ("register_at_fork", "fork", "sched_yield", "getuid", "geteuid", "getpgid", "killpg", "mknod", "statvfs",
         "O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "uname"),
}  # fmt: skip
for module, names in UNIX.items():
    for name in names:
        module.__dict__.pop(name, None)
for absent in ("fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "syslog"):
    sys.modules[absent] = None  # type: ignore[assignment]  # importing it fails
sys.platform = "win32"

import dibs  # noqa: E402
import dibs.aio  # noqa: E402
import dibs.backends  # noqa: E402


def threads() -> None:
    with dibs.connect("memory://", lease=30) as client:
        with client.lock("a") as hold:
            waiter = threading.Thread(target=lambda: client.lock("a").acquire().release())
            waiter.start()
            while not client.inspect("a").waiters:
                time.sleep(0.01)
            assert hold.remaining > 0
        waiter.join()


async def tasks() -> None:
    async with dibs.aio.connect("memory://", lease=30) as client, client.lock("a"):
        waiter = asyncio.create_task(client.lock("a").acquire())
        while not (await client.inspect("a")).waiters:
            await asyncio.sleep(0.01)
        waiter.cancel()


def modules() -> None:
    for module in pkgutil.walk_packages(dibs.backends.__path__, "dibs.backends."):
        if not module.name.startswith("dibs.backends.sqlite"):
            import_module(module.name)


threads()
LOOP.run_until_complete(tasks())
LOOP.close()
modules()
print("works")
