"""What only MySQL does to us: a long snapshot elsewhere keeps rows that nobody needs."""

from __future__ import annotations

from contextlib import closing

import dibs
from lab.servers.supervisor import Server
from store.mysql.rows import Raw


def test_a_long_snapshot_elsewhere_keeps_nobody_waiting(server: Server, name: str) -> None:
    """What nobody needs stays in the tables while it is open; the walk does not pass over it."""
    with dibs.connect(server.url()) as client, closing(Raw(server.port)) as raw, closing(Raw(server.port)) as looks:
        lock = client.lock(name)
        lock.acquire().release()
        raw.ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        raw.ask("SELECT COUNT(*) FROM dibs_claims")
        for _ in range(150):
            lock.acquire().release()
        before = reads(looks)
        for _ in range(10):
            lock.acquire().release()
        each = (reads(looks) - before) / 10
        print(f"figure: rows that a pair reads behind 150 others that cannot be purged: {each:.0f}")
        assert each < 60


def reads(raw: Raw) -> int:
    rows = raw.ask("SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Handler_read%'")
    return sum(int(value) for _, value in rows)
