"""The simulation of docs/simulation.md, as a reader sees and operates it. No test waits for a clock: Step 1 s moves
time, or Playwright's clock does where the page runs by itself."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.looks import Open, faint_texts, is_too_wide

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]
ROOT = "#dibs-simulation"
LIGHT, DARK = "rgb(27, 31, 36)", "rgb(230, 237, 243)"
CRASH, PAUSE, FENCE = "Crash a holder", "Pause a holder past its lease", "Now with a fence"


class Screen:
    """What a reader can find on the page, and do."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.queue = page.get_by_label("Queue in the store").get_by_role("listitem")
        self.value = page.locator(".sim-value")
        self.last_write = page.locator(".sim-last")
        self.count = page.locator(".sim-count")
        self.clock = page.locator(".sim-clock")
        self.log = page.get_by_role("log")

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def step(self, seconds: int) -> None:
        """As many clicks, without the frames that Playwright waits for around each."""
        button = self.page.get_by_role("button", name="Step 1 s")
        button.evaluate("(it, clicks) => { while (clicks--) it.click(); }", seconds)

    def worker(self, name: str) -> Locator:
        return self.page.get_by_label(f"Worker {name}", exact=True)

    def lease(self, name: str) -> float:
        """How full the bar is, in percent."""
        width = self.worker(name).locator("rect").get_attribute("width")
        assert width is not None
        return round(float(width.removesuffix("%")), 1)


@pytest.fixture
def screen(site: Path, open_page: Open) -> Screen:
    """Nothing moves by itself: as for readers who asked for less motion."""
    return Screen(open_page(site / "simulation.html", reduced_motion="reduce"))


@pytest.fixture
def moving(site: Path, open_page: Open) -> Screen:
    """It moves by itself, on a clock that the test drives."""
    page = open_page(site / "simulation.html", before=lambda page: page.clock.install(time=0))
    page.clock.pause_at(60_000)
    return Screen(page)


def test_workers_are_served_in_the_order_in_which_they_asked(screen: Screen) -> None:
    screen.step(4)
    expect(screen.queue).to_have_text(["Ana: lock, token 1", "Bob", "Cleo", "Dan"])
    expect(screen.worker("Ana")).to_contain_text("Holds the lock with token 1. Has read 0.")
    expect(screen.worker("Dan")).to_contain_text("Place 4 in the queue")
    screen.step(20)
    grants = screen.log.get_by_text("holds the lock with token")
    expect(grants).to_contain_text(["Ana", "Bob", "Cleo", "Dan", "Ana"])
    assert [int(found[1]) for text in grants.all_inner_texts() if (found := re.search(r"token (\d+)", text))] == [
        1, 2, 3, 4, 5,
    ]  # fmt: skip
    expect(screen.value).to_have_text("4")


def test_the_lease_drains_and_is_full_again_at_each_third(screen: Screen) -> None:
    seen = []
    for _ in range(6):
        screen.step(1)
        seen.append(screen.lease("Ana"))
    assert seen == [100.0, 83.3, 100.0, 83.3, 100.0, 0.0]  # the lease is 6 s, the work 5 s


def test_a_crashed_holder_keeps_the_lock_until_its_lease_is_over(screen: Screen) -> None:
    screen.press(CRASH)
    screen.step(8)
    expect(screen.worker("Ana")).to_contain_text("Crashed. Its claim is still in the store.")
    expect(screen.queue).to_have_text(["Ana: lock, token 1 (crashed)", "Bob", "Cleo", "Dan"])
    assert screen.lease("Ana") == 16.7
    expect(screen.page.get_by_role("button", name="Pause Ana")).to_be_disabled()
    screen.step(1)
    expect(screen.queue).to_have_text(["Bob: lock, token 2", "Cleo", "Dan"])
    expect(screen.worker("Bob")).to_contain_text("Holds the lock with token 2")
    expect(screen.value).to_have_text("0")
    screen.press("Restart Ana")
    screen.step(1)
    expect(screen.queue).to_have_text(["Bob: lock, token 2", "Cleo", "Dan", "Ana"])


def test_no_hold_is_valid_between_the_holders_deadline_and_the_stores(screen: Screen) -> None:
    screen.page.get_by_label("Lease", exact=True).fill("10")
    screen.step(2)
    screen.press("Pause Ana")
    screen.step(7)
    expect(screen.worker("Ana")).to_contain_text("Paused. Holds the lock with token 1.")
    screen.step(1)  # at 10 s: nine tenths of the lease that began at 1 s
    expect(screen.worker("Ana")).to_contain_text("Paused. Past its own deadline: its hold is not valid.")
    expect(screen.queue.first).to_have_text("Ana: lock, token 1")
    expect(screen.page.locator("[data-valid=true]")).to_have_count(0)
    screen.step(1)
    expect(screen.worker("Ana")).to_contain_text("Has lost the lock and cannot know it yet.")
    expect(screen.queue.first).to_have_text("Bob: lock, token 2")
    expect(screen.page.locator("[data-valid=true]")).to_have_count(1)


def test_without_a_fence_a_late_write_does_damage(screen: Screen) -> None:
    screen.press(PAUSE)
    screen.step(19)
    expect(screen.value).to_have_text("2")
    screen.step(1)
    expect(screen.value).to_have_text("1")
    expect(screen.last_write).to_have_text("Damage: Ana writes 1 over 2 with stale token 1. It is accepted.")
    expect(screen.last_write).to_have_attribute("data-result", "damage")
    expect(screen.count).to_have_text("3 writes accepted, 2 updates lost.")
    expect(screen.log).to_contain_text("Ana looks at its hold and is told: LockLost.")
    expect(screen.queue.first).to_have_text("Dan: lock, token 4")


def test_a_fence_refuses_the_late_write(screen: Screen) -> None:
    screen.press(FENCE)
    expect(screen.page.get_by_role("switch", name="Fence at the resource")).to_be_checked()
    screen.step(20)
    expect(screen.value).to_have_text("2")
    expect(screen.last_write).to_have_text("Refused: Ana writes 1 with stale token 1. The fence has seen 4.")
    expect(screen.last_write).to_have_attribute("data-result", "refused")
    expect(screen.count).to_have_text("2 writes accepted.")
    expect(screen.log).to_contain_text("Ana looks at its hold and is told: LockLost.")
    screen.step(5)  # Dan's work goes on as if nothing had happened
    expect(screen.value).to_have_text("3")


def test_a_short_pause_does_no_harm(screen: Screen) -> None:
    screen.step(2)
    screen.press("Pause Ana")
    screen.step(4)
    screen.press("Resume Ana")
    expect(screen.worker("Ana")).to_contain_text("Holds the lock with token 1")
    assert screen.lease("Ana") == 100.0
    expect(screen.value).to_have_text("1")
    expect(screen.log).not_to_contain_text("LockLost")


def test_a_paused_waiter_joins_again_at_the_end(screen: Screen) -> None:
    screen.step(3)
    screen.press("Pause Bob")
    screen.step(5)
    expect(screen.worker("Bob")).to_contain_text("Paused. No longer in the queue.")
    screen.press("Resume Bob")
    expect(screen.queue).to_have_text([re.compile("Cleo: lock"), "Dan", "Bob"])


def test_a_new_lease_counts_from_the_next_acquire(screen: Screen) -> None:
    screen.step(1)
    screen.page.get_by_label("Lease", exact=True).fill("3")
    screen.step(1)
    assert (screen.lease("Ana"), screen.lease("Bob")) == (83.3, 100.0)
    expect(screen.worker("Bob")).to_contain_text("Lease: 3.0 s left")


def test_a_scenario_runs_to_its_end_by_itself_and_stops(moving: Screen) -> None:
    moving.page.get_by_label("Speed").select_option("3")
    moving.press(CRASH)
    moving.page.clock.run_for(1000)
    expect(moving.clock).to_have_text(re.compile(r"^(2\.9|3\.0) s$"))
    moving.page.clock.run_for(3000)
    expect(moving.clock).to_have_text("10.0 s")
    expect(moving.queue.first).to_have_text("Bob: lock, token 2")
    expect(moving.page.get_by_role("button", name="Run")).to_be_visible()


def test_time_stops_and_goes_on(moving: Screen) -> None:
    moving.page.clock.run_for(500)
    expect(moving.clock).to_have_text("0.0 s")
    moving.press("Run")
    moving.page.clock.run_for(1500)
    moving.press("Stop")
    shown = moving.clock.inner_text()
    assert shown in {"1.4 s", "1.5 s"}
    moving.page.clock.run_for(500)
    expect(moving.clock).to_have_text(shown)
    moving.page.emulate_media(reduced_motion="reduce")
    moving.press("Start again")
    moving.press("Run")
    moving.page.clock.run_for(900)
    expect(moving.clock).to_have_text("0.0 s")
    moving.page.clock.run_for(200)
    expect(moving.clock).to_have_text("1.0 s")  # in whole seconds


def test_the_keyboard_is_enough(screen: Screen) -> None:
    page = screen.page
    focused = page.locator("*:focus")

    def tab_to(control: Locator) -> None:
        for _ in range(400):
            page.keyboard.press("Tab")
            if control.evaluate("it => it === document.activeElement"):
                style = focused.evaluate("it => [getComputedStyle(it).outlineStyle, getComputedStyle(it).outlineWidth]")
                assert style == ["solid", "3px"]
                return
        pytest.fail(f"Tab does not reach {control}")

    step = page.get_by_role("button", name="Step 1 s")
    lease = page.get_by_role("slider", name="Lease")
    fence = page.get_by_role("switch", name="Fence at the resource")
    tab_to(step)
    tab_to(lease)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("output[for=sim-lease]")).to_have_text("7 s, from the next acquire on")
    tab_to(fence)
    page.keyboard.press("Space")
    expect(fence).to_be_checked()
    for name in ("Crash Ana", "Pause Ana", "Crash Bob"):
        tab_to(page.get_by_role("button", name=name))
    page.keyboard.press("Enter")
    expect(screen.worker("Bob")).to_contain_text("Crashed.")
    expect(focused).to_have_accessible_name("Restart Bob")
    page.keyboard.press("Space")
    expect(focused).to_have_accessible_name("Crash Bob")
    tab_to(page.get_by_role("button", name="Pause Bob"))
    tab_to(screen.log)  # it scrolls, so the keyboard must get there
    for _ in range(60):
        page.keyboard.press("Shift+Tab")
        if step.evaluate("it => it === document.activeElement"):
            break
    page.keyboard.press("Enter")
    page.keyboard.press("Space")
    expect(screen.clock).to_have_text("2.0 s")
    expect(focused).to_have_accessible_name("Step 1 s")


def test_it_can_be_read_in_every_theme(site: Path, open_page: Open) -> None:
    """`data-theme` is how Furo notes what the reader chose; the root's colour scheme says it without Furo."""
    page = open_page(site / "simulation.html", width=360, reduced_motion="reduce")
    screen = Screen(page)
    for scenario in (PAUSE, FENCE):
        screen.press(scenario)
        screen.press("Crash Dan")
        screen.step(21)
        for scheme, theme in product(("light", "dark"), ("auto", "light", "dark")):
            page.emulate_media(color_scheme=scheme)
            page.evaluate(
                """theme => { document.body.dataset.theme = theme;
                document.documentElement.style.colorScheme = theme === "auto" ? "" : theme; }""",
                theme,
            )
            color = page.locator(ROOT).evaluate("it => getComputedStyle(it).color")
            assert color == (LIGHT if "light" in (theme, scheme) and theme != "dark" else DARK), (scheme, theme)
            assert faint_texts(page, ROOT) == {}, (scheme, theme)
        assert not is_too_wide(page)


def test_it_keeps_to_a_strict_content_security_policy(bare: Path, open_page: Open) -> None:
    """What the policy refuses stands on the console, and fails."""
    screen = Screen(open_page(bare, reduced_motion="reduce"))
    screen.press(FENCE)
    screen.step(20)
    expect(screen.last_write).to_have_attribute("data-result", "refused")


def test_without_javascript_the_page_says_what_is_missing(bare: Path, open_page: Open) -> None:
    page = open_page(bare, java_script_enabled=False)
    expect(page.locator(f"{ROOT} > noscript")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)


# Random faults, from one seed: checks the model after every second, and against the same seconds cut into pieces.
_STORM = """
(fence) => {
  const { create, act, step } = window.dibsSimulation;
  let seed = 1;
  const dice = (sides) => (seed = (seed * 48271) % 2147483647) % sides;
  const wrong = new Set();
  let late = 0;
  for (let run = 0; run < 100; run += 1) {
    const lease = 2000 + 500 * dice(20);
    const whole = create({ lease, fence });
    const pieces = create({ lease, fence });
    for (let second = 0; second < 60; second += 1) {
      if (dice(4) === 0) {
        const worker = dice(4);
        const usual = { running: "pause", paused: "resume", crashed: "restart" }[whole.workers[worker].life];
        const event = { type: usual !== "restart" && dice(4) === 0 ? "crash" : usual, worker };
        act(whole, event);
        act(pieces, event);
      }
      step(whole, 1000);
      for (const ms of [1, 332, 0, 667]) step(pieces, ms);
      const holding = whole.workers.filter((it) => it.doing === "holding" && it.life !== "crashed");
      const valid = holding.filter((it) => whole.now < it.deadline);
      const { value, accepted, writes } = whole.resource;
      late += writes.filter((it) => it.result !== "accepted" && it.at >= whole.now - 1000).length;
      const tokens = whole.queue.map((it) => it.token);
      if (valid.length > 1) wrong.add("two valid holds");
      if (valid.some((it) => it.claim !== whole.queue[0])) wrong.add("a valid hold that the store does not know");
      if (tokens.some((token, i) => i && token < tokens[i - 1])) wrong.add("the queue is not in order");
      if (fence ? value !== accepted : value > accepted) wrong.add("the counter does not fit the writes");
      if (JSON.stringify(whole) !== JSON.stringify(pieces)) wrong.add("time in pieces makes a difference");
    }
  }
  return { late, wrong: [...wrong] };
}
"""


@pytest.mark.parametrize("fence", [False, True])
def test_the_model_keeps_what_dibs_promises(screen: Screen, fence: bool) -> None:
    """At most one valid hold, first come first served, and with a fence no lost update, whatever happens to workers."""
    found = screen.page.evaluate(_STORM, fence)
    assert found["wrong"] == []
    assert found["late"] > 20, "the storm made hardly any late write"
