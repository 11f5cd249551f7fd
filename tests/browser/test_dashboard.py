"""The dashboard in Chromium shows the state of the store, whatever happens to holders, servers and readers."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

import dibs
from browser.dashboards import Screen, Served, buffering_proxy, is_equal, served
from browser.looks import Open, faint_texts, is_too_wide
from lab.servers import ports
from process.children import LASTING, Crew, until
from process.guarded import directory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]
Visit = Callable[..., Screen]
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(2)</script>",
    "javascript:alert(3)",
    "\u202egnp.exe",
    "__proto__",
    "'\"><svg/onload=alert(4)>",
]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with directory() as path:
        yield path


@pytest.fixture(scope="module")
def crew(place: Path) -> Iterator[Crew]:
    crew = Crew(place)
    yield crew
    crew.disband()


@pytest.fixture(scope="module")
def server(crew: Crew) -> Iterator[Served]:
    with served(crew.url, "--allow-break") as server:
        yield server


@pytest.fixture(autouse=True)
def nobody_left(crew: Crew) -> Iterator[None]:
    yield
    for child in crew.children:
        child.discard()
    crew.children.clear()

    def is_free() -> bool:
        found = list(crew.client.locks())
        for info in found:
            for one in info.holders:
                with suppress(dibs.DibsError):  # it ended meanwhile
                    crew.client.break_(info.name, token=one.token)
        return not found

    until(is_free, what="no lock is held")


@pytest.fixture
def visit(open_page: Open) -> Visit:
    return lambda address, **options: Screen(open_page(address, **options))


@pytest.mark.gate
def test_the_table_is_what_the_store_says_after_a_kill_and_a_stop(crew: Crew, server: Served, visit: Visit) -> None:
    screen = visit(server.address)
    expect(screen.page.locator("#empty")).to_contain_text("No lock is held.")
    steady, waiting, killed, stopped, heir = crew.workers(None, None, 2 * LASTING, 2 * LASTING, None)
    steady.take("billing")
    waiting.tell("take", "billing", 60)
    killed.take("invoice:1")
    stale = stopped.take("report")
    heir.tell("take", "report", 60)
    crew.in_queue("billing", 1, 1)
    crew.in_queue("report", 1, 1)
    until(lambda: is_equal(screen, crew.client), what="the page shows the store")
    expect(screen.row("billing")).to_contain_text(f"pid {steady.pid}")
    expect(screen.card("Held")).to_have_text("3")
    expect(screen.card("Waiting")).to_have_text("2")
    killed.kill()
    stopped.freeze()
    expect(screen.row("report")).to_contain_text(f"pid {heir.pid}")
    expect(screen.row("invoice:1")).to_have_count(0)
    until(lambda: is_equal(screen, crew.client), what="the page shows the store")
    expect(screen.card("Leases expired")).not_to_have_text("0")
    screen.open("report")
    expect(screen.history.filter(has_text=f"pid {stopped.pid}").first).to_contain_text("lease ended")
    expect(screen.page.locator("#history")).to_contain_text(str(stale)[-5:])
    expect(screen.holders).to_contain_text([f"pid {heir.pid}"])
    expect(screen.page.locator(".lane .ended")).to_have_count(1)
    stopped.signal(signal.SIGCONT)


@pytest.mark.gate
def test_the_bar_of_a_lease_drains(crew: Crew, server: Served, visit: Visit) -> None:
    crew.client.lock("draining", lease=60, renew=False).acquire()
    fill = visit(server.address).row("draining").locator(".lease-fill")
    first = width(fill)
    until(lambda: width(fill) < 0.97 * first, what="a shorter bar")


def width(one: Locator) -> float:
    box = one.bounding_box()
    return 0.0 if box is None else box["width"]


@pytest.mark.gate
def test_the_queue_stands_in_order_on_the_page_of_a_lock(crew: Crew, server: Served, visit: Visit) -> None:
    workers = crew.workers(None, None, None)
    workers[0].take("deploy")
    for place, waiter in enumerate(workers[1:], 1):
        waiter.tell("take", "deploy", 60)
        crew.in_queue("deploy", 1, place)
    screen = visit(server.address)
    screen.open("deploy")
    link = screen.page.url
    expect(screen.queue).to_contain_text([f"pid {one.pid}" for one in workers[1:]])
    expect(screen.queue.locator(".place")).to_have_text(["1.", "2."])
    expect(screen.page.locator(".span.waited")).to_have_count(2)
    expect(screen.page.locator("#lock-state")).to_have_text("mutex: held, 2 waiters")
    workers[0].ask("give", "deploy", hear="gave")
    workers[1].hear("took")
    other = visit(link)
    for tab in (screen, other):
        expect(tab.holders).to_contain_text([f"pid {workers[1].pid}"])
        expect(tab.queue).to_contain_text([f"pid {workers[2].pid}"])


@pytest.mark.gate
def test_holders_that_are_not_listed_are_counted(crew: Crew, server: Served, visit: Visit) -> None:
    pool = crew.client.semaphore("pool", 300)
    holds = [pool.acquire() for _ in range(203)]
    screen = visit(server.address)
    screen.open("pool")
    expect(screen.page.locator("#holders-title")).to_have_text("Holders (203)")
    expect(screen.holders).to_have_count(200)
    expect(screen.page.locator("#holders-more")).to_have_text("3 more are not listed.")
    for hold in holds:
        hold.release()
    expect(screen.page.locator("#holders-title")).to_have_text("Holders (0)")


def test_a_break_needs_the_present_token_and_a_reason(crew: Crew, server: Served, visit: Visit) -> None:
    first, second = crew.workers(None, None)
    stale = first.take("ledger")
    screen = visit(server.address, ignore="409")
    screen.open("ledger")
    screen.page.get_by_role("button", name="Break a hold…").click()
    expect(screen.dialog).to_contain_text(f"token {stale}")
    first.ask("give", "ledger", hear="gave")
    present = second.take("ledger")
    expect(screen.holders).to_contain_text([f"token {present}"])
    confirm = screen.page.get_by_role("button", name="Break this hold")
    reason = screen.page.get_by_label("Reason, for the record")
    confirm.click()
    expect(screen.dialog.get_by_role("alert")).to_contain_text("Give a reason")
    reason.fill("stuck")
    confirm.click()
    expect(screen.dialog.get_by_role("alert")).to_contain_text(f"pid {second.pid} with token {present}")
    assert [one.token for one in crew.client.inspect("ledger").holders] == [present]
    screen.page.get_by_role("button", name="Cancel").click()
    screen.page.get_by_role("button", name="Break a hold…").click()
    confirm.click()
    expect(screen.page.locator("#break-result")).to_contain_text("ledger")
    expect(screen.page.locator("#holders-none")).to_be_visible()
    assert crew.client.inspect("ledger").holders == ()
    expect(screen.page.locator("#lock-broken")).to_contain_text("stuck")


@pytest.fixture
def port() -> Iterator[int]:
    """Reserved while no server listens there."""
    reserved = ports.reserve()
    yield reserved
    ports.release(reserved)


@pytest.mark.gate
def test_it_comes_back_with_its_server(crew: Crew, visit: Visit, place: Path, port: int) -> None:
    other = f"--url=sqlite:///{place}/other.db"
    with served(crew.url, other, port=port) as first:
        crew.worker().take("before")
        screen = visit(first.address, ignore="Failed to load resource")
        expect(screen.row("before")).to_be_visible()
        expect(screen.page.locator("#break-open")).to_be_hidden()
        chips = screen.page.get_by_label("Stores").get_by_role("link")
        chips.nth(1).click()
        expect(screen.page.locator("#empty")).to_contain_text("No lock is held.")
        chips.nth(0).click()
        expect(screen.row("before")).to_be_visible()
        first.kill()
        expect(screen.state).to_have_text("reconnecting")
        expect(screen.page.get_by_role("alert")).to_contain_text("The dashboard does not answer.")
        crew.worker().take("after")
        with served(crew.url, other, port=port):
            expect(screen.state).to_have_text("live")
            expect(screen.row("after")).to_be_visible()


@pytest.mark.gate
def test_a_hidden_tab_has_no_stream(crew: Crew, server: Served, visit: Visit) -> None:
    streams: list[str] = []

    def note(page: Page) -> None:
        page.on("request", lambda sent: streams.append("open") if "api/stream" in sent.url else None)
        page.on("requestfailed", lambda sent: streams.append("closed") if "api/stream" in sent.url else None)

    screen = visit(server.address, before=note)
    expect(screen.state).to_have_text("live")
    hide = """hidden => { Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
              document.dispatchEvent(new Event("visibilitychange")); }"""
    screen.page.evaluate(hide, True)
    until(lambda: screen.page.wait_for_timeout(1) or streams[-1] == "closed", what="the end of the stream")
    crew.worker().take("meanwhile")
    screen.page.evaluate(hide, False)
    expect(screen.row("meanwhile")).to_be_visible()
    assert streams.count("open") - streams.count("closed") == 1


def test_names_and_info_of_strangers_are_text(crew: Crew, server: Served, visit: Visit) -> None:
    with dibs.connect(crew.url, owner="<b>eve</b>", lease=60) as client:
        holds = [client.lock(name, info={name: name, "url": "javascript:alert(5)"}).acquire() for name in HOSTILE]
        screen = visit(server.address)
        expect(screen.rows).to_have_count(len(HOSTILE))
        names = set(screen.table())
        assert names == {name.replace("\u202e", "\\u202e") for name in HOSTILE}
        for name in sorted(names):
            screen.open(name)
            expect(screen.holders).to_contain_text(["<b>eve</b>"])
            expect(screen.holders.locator(".info")).to_contain_text("javascript:alert(5)")
            expect(screen.page.locator("#lock-page img, #lock-page script, #lock-page b")).to_have_count(0)
            hrefs = screen.page.locator("a").evaluate_all("links => links.map((link) => link.getAttribute('href'))")
            assert all(href.startswith("#") for href in hrefs), hrefs
            screen.page.keyboard.press("Escape")
            expect(screen.rows).to_have_count(len(HOSTILE))
        screen.filter.fill("<SCRIPT>")
        expect(screen.rows).to_have_count(1)
        for hold in holds:
            hold.release()


@pytest.mark.gate
def test_behind_a_proxy_that_keeps_the_stream_back_it_polls(crew: Crew, server: Served, visit: Visit) -> None:
    """The test drives the clock of the page."""
    with buffering_proxy(server.port) as address:
        screen = visit(address, before=lambda page: page.clock.install())
        expect(screen.state).to_have_text("connecting")
        screen.page.clock.run_for(16_000)
        expect(screen.state).to_have_text("live, by polling")
        crew.worker().take("behind")
        until(lambda: screen.page.clock.run_for(2_000) or screen.row("behind").count(), what="the row")
        screen.open("behind")
        until(lambda: screen.page.clock.run_for(16_000) or screen.holders.count(), what="the holder")
        screen.page.close()


def test_the_keyboard_is_enough(crew: Crew, server: Served, visit: Visit) -> None:
    worker = crew.worker()
    for name in ("alpha", "beta", "gamma:1", "gamma:2"):
        worker.take(name)
    screen = visit(server.address, route="#locks/0?sort=name")
    keyboard = screen.page.keyboard
    expect(screen.rows).to_have_count(4)
    keyboard.press("j")
    expect(screen.grid).to_be_focused()
    keyboard.press("ArrowDown")
    active = screen.page.locator("#grid .row.active")
    expect(active).to_contain_text("beta")
    assert screen.grid.get_attribute("aria-activedescendant") == active.get_attribute("id")
    keyboard.press("End")
    expect(active).to_contain_text("gamma:2")
    keyboard.press("k")
    keyboard.press("Enter")
    expect(screen.page.locator("#lock-name")).to_have_text("gamma:1")
    expect(screen.page.locator("#lock-name")).to_be_focused()
    keyboard.press("Escape")
    expect(screen.grid).to_be_focused()
    keyboard.press("/")
    expect(screen.filter).to_be_focused()
    keyboard.type("MMA:2")
    keyboard.press("Enter")  # before the reply, which does not contain the marked row
    expect(screen.grid).to_be_focused()
    expect(screen.rows).to_have_count(1)
    expect(screen.page.locator("#matches")).to_have_text("1 lock found")
    expect(active).to_contain_text("gamma:2")
    keyboard.press("/")
    keyboard.press("Escape")
    expect(screen.rows).to_have_count(4)
    screen.page.get_by_role("link", name="gamma:").first.press("Enter")
    expect(screen.rows).to_have_count(2)


@pytest.mark.gate
def test_prefixes_are_a_tree(crew: Crew, server: Served, visit: Visit) -> None:
    worker = crew.worker()
    for name in ("eu:invoice:1", "eu:invoice:2", "eu:order:1", "us:invoice:1"):
        worker.take(name)
    screen = visit(server.address)
    tree = screen.page.get_by_label("Prefixes of names").get_by_role("link")
    expect(tree).to_have_text(["All names", "eu:3", "us:1"])
    tree.nth(1).click()
    expect(tree).to_have_text(["All names", "eu:3", "invoice:2", "order:1", "us:1"])
    expect(screen.rows).to_have_count(3)
    tree.nth(2).click()
    expect(screen.rows).to_have_count(2)
    expect(tree.nth(2)).to_have_attribute("aria-current", "page")


@pytest.mark.gate
def test_an_address_that_leads_nowhere_says_so(crew: Crew, server: Served, visit: Visit) -> None:
    crew.worker().take("here")
    screen = visit(server.address, ignore="Failed to load resource", route="#locks/7")
    expect(screen.state).to_have_text("not found")
    expect(screen.page.get_by_role("alert")).to_have_text("there is no such store")
    expect(screen.rows).to_have_count(0)
    expect(screen.page.locator("#empty")).to_be_hidden()
    screen.page.goto(f"{server.address}#lock/0/_w")
    expect(screen.page.get_by_role("alert")).to_contain_text("key is not that of a lock")
    screen.page.goto(f"{server.address}#locks/0")
    expect(screen.state).to_have_text("live")
    expect(screen.row("here")).to_be_visible()
    expect(screen.page.locator("#error")).to_be_hidden()


@pytest.mark.gate
def test_read_and_write_holds_are_named(crew: Crew, server: Served, visit: Visit) -> None:
    screen = visit(server.address)
    with crew.client.rwlock("stock").write as hold:
        screen.open("stock")
        expect(screen.page.locator("#lock-state")).to_have_text("rw, exclusive: held")
        expect(screen.holders.locator(".weight")).to_have_text("write")
        hold.downgrade()
        expect(screen.page.locator("#lock-state")).to_have_text("rw, shared: held")
        expect(screen.holders.locator(".weight")).to_have_text("read")


def named(page: Page, what: Locator) -> None:
    """Each has a name for a screen reader."""
    for one in what.all():
        expect(one).to_have_accessible_name(re.compile(r"\S"))


@pytest.mark.gate
def test_it_can_be_read_in_light_and_dark_wide_and_narrow(crew: Crew, server: Served, visit: Visit) -> None:
    workers = crew.workers(None, None, None)
    workers[0].take("a-rather-long-name-of-a-lock:" + "0123456789" * 8)
    workers[0].take("billing")
    workers[1].take("ledger")
    workers[0].tell("take", "ledger", 60)
    workers[1].tell("take", "billing", 60)
    workers[2].tell("take", "billing", 60)
    crew.in_queue("billing", 1, 2)
    with crew.client.semaphore("pool", 3).acquire():
        screen = visit(server.address)
        page = screen.page
        expect(page.locator(".cycles li")).to_contain_text(["Probable deadlock: "])
        expect(page.locator("#heat li").first).to_be_visible()
        for name in (None, "billing", "pool"):
            if name is not None:
                screen.open(name)
                expect(screen.holders).to_have_count(1)
            for width in (1280, 360):
                page.set_viewport_size({"width": width, "height": 900})
                assert not is_too_wide(page), (name, width)
                for scheme in ("light", "dark"):
                    page.emulate_media(color_scheme=scheme)
                    assert faint_texts(page, "body") == {}, (name, width, scheme)
            named(page, page.locator("button:visible, a:visible, select:visible, input:visible, svg[role=img]:visible"))
            page.set_viewport_size({"width": 1280, "height": 900})
            if name is not None:
                page.keyboard.press("Escape")
        expect(screen.grid).to_have_attribute("aria-rowcount", "5")
        expect(screen.row("pool")).to_contain_text("semaphore 1/3")
        screen.open("pool")
        expect(page.get_by_role("img", name="1 of 3 permits in use, 2 free, 0 waiters")).to_be_visible()


@pytest.mark.gate
def test_ten_thousand_names_are_thirty_rows(crew: Crew, visit: Visit, place: Path) -> None:
    url = f"sqlite:///{place}/many.db"
    with dibs.connect(url, lease=600) as client, served(url) as server:
        for number in range(10_000):
            client.lock(f"job:{number:05}", renew=False).acquire()
        screen = visit(server.address, route="#locks/0?sort=name")
        expect(screen.page.locator("#matches")).to_have_text("10,000 locks")
        expect(screen.row("job:00000")).to_be_visible()
        expect(screen.grid).to_have_attribute("aria-rowcount", "10001")
        screen.grid.evaluate("grid => { grid.scrollTop = grid.scrollHeight; }")
        expect(screen.row("job:09999")).to_be_visible()
        assert screen.rows.count() < 35
        screen.grid.press("Home")
        expect(screen.row("job:00000")).to_be_visible()
        screen.filter.fill("job:0777")
        expect(screen.rows).to_have_count(10)
        screen.page.close()
