"""Tokens rise over a crash, a clock that was set back, and an operator who resets or removes the counter."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pymysql
import pytest

import dibs
from lab.clock import Clock
from lab.servers.mariadb import MariaDB
from lab.servers.supervisor import Server
from sql.openers import mysql_options
from store.mysql.rows import Raw

pytestmark = pytest.mark.gate

Draw = Callable[[], int]


class OnDisk(MariaDB):
    """Its log is on a disk: in memory MariaDB keeps uncommitted writes, too."""

    def __init__(self, logs: Path) -> None:
        super().__init__(f"--innodb-log-group-home-dir={logs}")
        self._logs = logs

    def prepare(self, data: Path) -> None:
        super().prepare(data)
        shutil.move(data / "ib_logfile0", self._logs)
        if self.user is not None:
            for path in (self._logs, self._logs / "ib_logfile0"):
                os.chown(path, self.user.pw_uid, self.user.pw_gid)


@pytest.fixture
def crashing(hands: Clock) -> Iterator[Server]:
    """A server that keeps what it committed, and whose clock can be set."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as logs, Server(OnDisk(Path(logs)), hands.env()) as made:
        yield made


MODES = ["lease", "session", "within"]
RESETS = {
    "restarted": "ALTER SEQUENCE dibs_tickets RESTART",
    "dropped": "DROP SEQUENCE IF EXISTS dibs_tickets",
    "replaced": "CREATE OR REPLACE SEQUENCE dibs_tickets START WITH 1 INCREMENT BY 0 CACHE 1000",
}


@contextmanager
def drawing(server: Server, mode: str, name: str) -> Iterator[Draw]:
    """Take and give back a lock; its token."""
    url = server.url() if mode == "within" else f"{server.url()}?mode={mode}"
    with dibs.connect(url, retry=30) as client, closing(pymysql.connect(**mysql_options(server.url()))) as own:

        def locked() -> int:
            with client.lock(name) as hold:
                return hold.token

        def enclosed() -> int:
            with client.within(own).lock(name) as hold:
                token = hold.token
            own.rollback()
            return token

        yield enclosed if mode == "within" else locked


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "step", [pytest.param(0, marks=pytest.mark.soak, id=""), pytest.param(-3600, id="clock set back")]
)
def test_tokens_rise_over_crashes(crashing: Server, hands: Clock, name: str, mode: str, step: int) -> None:
    """Nothing else is committed: what was given is on the disk before anybody has it."""
    tokens: list[int] = []
    for _ in range(3):
        with drawing(crashing, mode, name) as draw:
            tokens += [draw() for _ in range(20)]
            crashing.kill()
        hands.step(step)
        crashing.start()
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("reset", RESETS)
def test_tokens_rise_though_the_counter_is_reset_again_and_again(server: Server, name: str, reset: str) -> None:
    """In one mode the last token of the name is known, in another one it is not; nor to a client that comes later."""
    with ExitStack() as stack:
        raw = stack.enter_context(closing(Raw(server.port)))
        leased, session, within = (stack.enter_context(drawing(server, mode, name)) for mode in MODES)
        tokens = [leased(), session(), within()]
        for draw in (leased, leased, session, within, leased, within, session):
            raw.ask(RESETS[reset])
            tokens.append(draw())
            with drawing(server, "session" if draw is leased else "lease", name) as new:
                tokens += [new(), draw()]
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("reset", RESETS)
def test_a_counter_that_was_reset_lets_nobody_in_beside_a_holder(stepped: Server, hands: Clock, reset: str) -> None:
    """Not even where the clock was set back, too: a ticket below those that stand would go before them."""
    with dibs.connect(stepped.url(), lease=60) as client, closing(Raw(stepped.port)) as raw:
        with client.lock("a") as hold:
            hands.step(-30)
            raw.ask(RESETS[reset])
            with dibs.connect(stepped.url()) as other:
                assert other.lock("a").acquire(timeout=0.2) is None
            hold.check()
            token = hold.token
        raw.ask(RESETS[reset])
        with client.lock("a") as hold:
            assert hold.token > token


def test_a_name_that_nobody_remembers_is_looked_at(server: Server, name: str) -> None:
    """The row of a name says in which modes it may be held: without it a claim by a lease looks for the others."""
    session, leases = dibs.connect(f"{server.url()}?mode=session", lease=60), dibs.connect(server.url())
    with session, leases, closing(Raw(server.port)) as raw:
        for client in (session, leases):
            client.lock(name).acquire().release()
        own = pymysql.connect(**mysql_options(server.url()))
        with closing(own), leases.within(own).lock(name):
            raw.ask("DELETE FROM dibs_queues")
            for other in (leases, session):
                with pytest.raises(dibs.Mismatch):
                    other.lock(name).acquire(timeout=0)
            own.rollback()
        with session.lock(name) as hold:
            raw.ask("DELETE FROM dibs_queues")
            with pytest.raises(dibs.Mismatch):
                leases.lock(name).acquire(timeout=0)
            hold.check()
        with leases.lock(name):
            assert leases.lock(name).acquire(timeout=0) is None  # which moves the claim out of that row
            raw.ask("DELETE FROM dibs_queues")
            with pytest.raises(dibs.Mismatch):
                session.lock(name).acquire(timeout=0)
