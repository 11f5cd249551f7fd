"""What only MySQL does to us: a long snapshot elsewhere keeps rows that nobody needs; tables are dropped."""

from __future__ import annotations

from contextlib import closing

import pytest

import dibs
from dibs.backends.common.round_trip import RoundTrip
from dibs.backends.mysql.address import Address
from dibs.backends.mysql.connection import Dialler
from dibs.runtime.threads import ThreadRuntime
from dibs.url import parse
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


def test_tables_that_were_made_anew_have_none_of_our_claims(server: Server, name: str) -> None:
    """Whatever is asked next tells a client so: all it holds is lost, long before a renewal is due."""
    with dibs.connect(server.url(), lease=60) as client, dibs.connect(server.url(), lease=60) as other:
        old = [client.lock(f"{name}-{number}").acquire() for number in range(3)]
        with closing(Raw(server.port)) as raw:
            raw.ask("DROP DATABASE dibs")
            raw.ask("CREATE DATABASE dibs")
        with other.lock(f"{name}-0", timeout=0) as new:
            assert new.token > max(hold.token for hold in old)
            with client.lock(f"{name}-elsewhere") as again:  # asked again, and then of the new store
                assert not [hold for hold in old if not hold.lost.is_set()]
                for hold in old:
                    with pytest.raises(dibs.LockLost):
                        hold.release()
                again.check()
                assert client.lock(f"{name}-0").acquire(timeout=0) is None
            new.check()


def test_a_dial_whose_deadline_has_passed_is_tried_all_the_same() -> None:
    """A negative timeout would fail inside PyMySQL, which leaves its socket open then."""
    now = ThreadRuntime().now
    dialler = Dialler(Address.of(parse("mysql://127.0.0.1:1/dibs")), now, RoundTrip())
    with pytest.raises(dibs.StoreUnavailable, match="Connection refused"):
        dialler.connect(now() - 1)
