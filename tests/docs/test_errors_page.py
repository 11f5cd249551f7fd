"""docs/errors.md shows the texts of errors as they are: each sample that needs no server is raised here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dibs

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
SAMPLES = dict(re.findall(r"^## (\w+)\n(?:(?!^## ).*\n)*?```text\n(.+)\n```$", PAGE.read_text(), re.MULTILINE))
STORE = "redis://cache"
NEEDS_MORE = {"StoreError", "StoreUnavailable", "MissingDriver", "DibsError"}
"""They need a server, or a driver that is missing; `DibsError` shows the tree."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'locks.db'}"


@pytest.fixture
def client(url: str) -> Iterator[dibs.Client]:
    with dibs.connect(url) as client:
        yield client


def acquire_timeout(client: dibs.Client) -> None:
    """The holder has an owner of its own, or the text would suggest an `rlock`."""
    with client.lock("invoice:42", owner="ana"), client.lock("invoice:42", timeout=0.01):
        pass


def lock_lost(client: dibs.Client) -> None:
    with client.lock("invoice:42", max_hold=0.01) as hold:
        assert hold.lost.wait(60)


def deadlock(client: dibs.Client) -> None:
    config = client.rwlock("config")
    with config.read, config.write:
        pass


def closed(client: dibs.Client) -> None:
    client.close()
    client.lock("invoice:42").acquire()


def mismatch(client: dibs.Client) -> None:
    with client.semaphore("partner-api", 5), client.semaphore("partner-api", 4):
        pass


def conflict(client: dibs.Client) -> None:
    schema = client.cell("schema")
    schema.set(b"v3", schema.set(b"v2", 0))
    schema.set(b"v4", 1)


def stale_token(client: dibs.Client) -> None:
    client.fence("stock").admit(34)
    client.fence("stock").admit(33)


RAISED: dict[str, Callable[[dibs.Client], object]] = {
    "AcquireTimeout": acquire_timeout,
    "LockLost": lock_lost,
    "NotHeld": lambda client: client.lock("invoice:42").release(),
    "Deadlock": deadlock,
    "Closed": closed,
    "Mismatch": mismatch,
    "Unsupported": lambda client: dibs.connect("quorum+redis://h1,h2,h3").semaphore("partner-api", 5),
    "Conflict": conflict,
    "StaleToken": stale_token,
    "BadName": lambda client: client.lock(" "),
}


def _shape(text: str) -> str:
    """Without what differs from run to run."""
    text = re.sub(r"held by .+? for \S+( s)?", "held by P for D", text)
    text = re.sub(r"token \d{4,}", "token N", text)
    text = re.sub(r"not free after \S+ s", "not free after D", text)
    text = re.sub(r"max_hold=[\d.]+", "max_hold=D", text)
    return re.sub(r"\d+ ahead of you", "N ahead of you", text)


@pytest.mark.parametrize("name", sorted(RAISED))
def test_a_sample_is_the_text_of_the_error(name: str, client: dibs.Client, url: str) -> None:
    with pytest.raises(getattr(dibs, name)) as raised:
        RAISED[name](client)
    assert type(raised.value).__name__ == name
    assert _shape(str(raised.value).replace(url, STORE)) == _shape(SAMPLES[name])


def test_every_sample_is_raised() -> None:
    assert SAMPLES.keys() - NEEDS_MORE == RAISED.keys()
