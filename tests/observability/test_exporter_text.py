"""The text of the exporter beside the truth of the store."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from cli.commands import Cli
from dibs.monitor import exporter as module
from dibs.monitor.exporter import METRICS, Exporter, app
from observability.telemetry import read_exporter
from process.children import PATIENCE, STEADY, until

PAGE = Path(__file__).parents[2] / "docs" / "production" / "exporter.md"
HOSTILE = ('quote"d', "back\\slash", "\\n", 'a"} 1', "{}", "# HELP", "é ☂ 锁", "'", ",", "=")


def scrape(exporter: Exporter) -> dict[tuple[str, str], float]:
    return read_exporter(asyncio.run(exporter.text()))


@pytest.fixture(autouse=True)
def no_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scrape is a scan of its own."""
    monkeypatch.setattr(module, "_SHARED_FOR", 0.0)


def test_the_figures_are_those_of_the_store(client: dibs.Client, cli: Cli) -> None:
    exporter, holder = Exporter([client]), cli.holder(lease=STEADY)
    assert scrape(exporter)["names", ""] == 0
    for number in range(3):
        holder.takes(f"invoice:{number}", key=f"invoice:{number}")
    holder.takes("page", "read", key="page")
    holder.takes("pool:a", "semaphore", 5, key="a", permits=3)
    holder.takes("pool:b", "semaphore", 2, key="b")
    holder.takes("boss", "lead", key="boss")
    holder.asks("invoice:1", "late")
    until(lambda: client.inspect("invoice:1").waiters)
    found = scrape(exporter)
    held = {group: value for (name, group), value in found.items() if name == "held"}
    assert held == {"invoice:*": 3, "page": 1, "pool:*": 2, "boss": 1}
    assert {group: value for (name, group), value in found.items() if name == "waiting" and value} == {"invoice:*": 1}
    assert 0 <= found["oldest_wait_seconds", "invoice:*"] < PATIENCE
    assert found["oldest_wait_seconds", "page"] == 0
    assert (found["permits_used", "pool:*"], found["permits_limit", "pool:*"]) == (4, 7)
    assert ("permits_used", "invoice:*") not in found
    assert [found[name, ""] for name in ("up", "names", "complete", "scans_total")] == [1, 7, 1, 2]
    assert found["scan_duration_seconds", ""] > 0
    assert found["handovers_total", "invoice:*"] == 3

    holder.gives("invoice:1")
    holder.took("late")
    holder.gives("page")
    found = scrape(exporter)
    assert found["handovers_total", "invoice:*"] == 4
    assert found["expired_total", "invoice:*"] == 0
    assert found["held", "page"] == 0, "a group that was seen keeps its series"


def test_hostile_names_stay_inside_their_label() -> None:
    with dibs.connect("memory://hostile") as client:
        holds = [client.lock(name).acquire() for name in HOSTILE]
        text = asyncio.run(Exporter([client], group=str).text())
        assert {group for name, group in read_exporter(text) if name == "held"} == set(HOSTILE)
        for hold in holds:
            hold.release()


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_GROUPS", 3)
    with dibs.connect("memory://bounded") as client:
        exporter = Exporter([client], group=str)
        for turn in range(3):
            holds = [client.lock(f"{turn}-{number}").acquire() for number in range(2)]
            found = scrape(exporter)
            for hold in holds:
                hold.release()
    assert sum(name == "handovers_total" for name, _ in found) == 4
    assert found["held", "other"] == 2


def test_scrapers_share_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHARED_FOR", PATIENCE)
    with dibs.connect(f"sqlite:///{tmp_path}/locks.db") as client:
        exporter = Exporter([client])

        async def many() -> set[str]:
            return set(await asyncio.gather(*(exporter.text() for _ in range(50))))

        (text,) = asyncio.run(many()) | asyncio.run(many())
        assert read_exporter(text)["scans_total", ""] == 1


def test_a_store_that_is_down_shows_no_gauge_but_that(tmp_path: Path) -> None:
    with dibs.connect("redis://127.0.0.1:1", retry=0.1) as client:
        assert scrape(Exporter([client])) == {("up", ""): 0, ("scans_total", ""): 1}


def test_a_store_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the scan that still runs is not doubled."""
    go_on, real = threading.Event(), module.scan

    def hanging(client: dibs.Client) -> Any:
        assert go_on.wait(PATIENCE)
        return real(client)

    monkeypatch.setattr(module, "scan", hanging)
    with dibs.connect("memory://hanging") as client:
        exporter = Exporter([client], timeout=0.05)
        assert [scrape(exporter)["up", ""] for _ in range(2)] == [0, 0]
        assert scrape(exporter)["scans_total", ""] == 1
        go_on.set()
        until(lambda: scrape(exporter)["up", ""])


def test_a_fault_in_the_rule_reaches_the_scraper() -> None:
    def rule(name: str) -> str:
        raise LookupError(name)

    with dibs.connect("memory://fault") as client, client.lock("a"), pytest.raises(LookupError):
        asyncio.run(Exporter([client], group=rule).text())


def test_wrong_clients() -> None:
    with dibs.connect("memory://x") as client, pytest.raises(ValueError, match="once: memory://x, memory://x"):
        Exporter([client, client])
    with pytest.raises(ValueError, match="at least one"):
        app()
    with pytest.raises(TypeError, match=r"dibs\.connect"):
        app(dibs.aio.connect("memory://x"))  # type: ignore[arg-type]


def test_two_stores_without_a_password() -> None:
    with dibs.connect("memory://a") as one, dibs.connect("redis://ana:sesame@127.0.0.1:1", retry=0.1) as other:
        text = asyncio.run(Exporter([one, other]).text())
    assert re.findall(r'^dibs_store_up\{store="(.*)"\} (.)', text, re.MULTILINE)[0] == ("memory://a", "1")
    assert text.count("# TYPE dibs_store_up ") == 1
    assert "sesame" not in text


def test_the_asgi_application() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    with dibs.connect("memory://asgi") as client, client.lock("a"):
        application = app(client)
        for method in ("GET", "HEAD", "POST"):
            asyncio.run(application({"type": "http", "method": method, "path": "/"}, receive, send))
    starts, bodies = sent[::2], [one["body"] for one in sent[1::2]]
    assert [one["status"] for one in starts] == [200, 200, 405]
    assert [bool(body) for body in bodies] == [True, False, True]
    assert read_exporter(bodies[0].decode())["held", "a"] == 1
    assert dict(starts[0]["headers"])[b"content-length"] == str(len(bodies[0])).encode()


def test_the_page_lists_every_metric() -> None:
    rows = re.findall(r"^\| `(dibs_store_\w+)` \| (\w+) \| (.+) \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    labelled = {"held", "waiting", "oldest_wait_seconds", "permits_used", "permits_limit"}
    assert rows == [
        (
            name,
            kind,
            "store, group"
            if name.removeprefix("dibs_store_") in labelled | {"handovers_total", "expired_total"}
            else "store",
        )
        for name, (kind, _) in METRICS.items()
    ]
