"""What the dashboard costs: 10,000 held names, 20 streams of the same view, and a change a second of a shown lock.

    .venv/bin/python bench/dashboard.py [sqlite] [redis]

Prints the CPU time of the server process as a share of a core, without and with viewers, and the seconds from a change
of a shown lock to its event. Redis is started for the run.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import dibs
from lab.servers.redis import Redis
from lab.servers.supervisor import Server

NAMES, STREAMS, CHANGES, IDLE = 10_000, 20, 12, 3.0


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def token_of(name: str, rows: list[dict[str, Any]]) -> int:
    return next((row["token"] for row in rows if row["name"] == name), 0)


def follow(port: int, seen: list[tuple[float, int]], ready: threading.Barrier) -> None:
    """Note when each event came, and the token in it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/api/stream")
    reply = connection.getresponse()
    first = True
    while line := reply.readline():
        if line.startswith(b'data: {"version"'):
            came = time.monotonic()
            if first:
                ready.wait()
                first = False
            if seen is not None:
                seen.append((came, token_of("job:00007", json.loads(line[6:])["rows"])))


def measure(kind: str, url: str) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(dibs.connect(url, lease=3600))
        for number in range(NAMES):
            client.lock(f"job:{number:05}").acquire()
        process = subprocess.Popen(
            [sys.executable, "-m", "dibs", "dashboard", "--port", "0", "--url", url], stdout=subprocess.PIPE, text=True
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        assert process.stdout is not None
        port = int(process.stdout.readline().strip().removesuffix("/").rpartition(":")[2])
        time.sleep(1)
        began = cpu(process.pid)
        time.sleep(IDLE)
        idle = (cpu(process.pid) - began) / IDLE
        seen: list[tuple[float, int]] = []
        ready = threading.Barrier(STREAMS + 1)
        for number in range(STREAMS):
            mine = seen if number == 0 else None
            threading.Thread(target=follow, args=[port, mine, ready], daemon=True).start()
        ready.wait()
        time.sleep(2)
        began, at, changes = cpu(process.pid), time.monotonic(), []
        for number in range(CHANGES):
            hold = client.lock("job:00007", lease=3600)
            holder = client.inspect("job:00007").holders[0]
            client.break_("job:00007", token=holder.token)
            taken = hold.acquire()
            assert taken is not None
            changes.append((time.monotonic(), taken.token))
            time.sleep(1 + number % 7 / 7)
        busy = (cpu(process.pid) - began) / (time.monotonic() - at)
        time.sleep(3)
    delays = [min((came - when for came, shown in seen if shown >= token), default=99.0) for when, token in changes]
    print(
        f"{kind}: {NAMES} names, {STREAMS} streams: {busy:.1%} of a core (no viewer: {idle:.1%}); "
        f"change to event: median {statistics.median(delays):.2f} s, longest {max(delays):.2f} s"
    )


def main() -> None:
    wanted = sys.argv[1:] or ["sqlite", "redis"]
    if "sqlite" in wanted:
        with tempfile.TemporaryDirectory() as directory:
            measure("sqlite", f"sqlite:///{directory}/locks.db")
    if "redis" in wanted:
        with Server(Redis()) as server:
            measure("redis", server.url())


if __name__ == "__main__":
    main()
