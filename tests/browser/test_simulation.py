"""The simulation of docs/simulation.md in a browser. No test waits for a clock: the button "Step 1 s" moves time, or
Playwright's clock does where the page runs by itself."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.looks import Open, faint_texts, is_too_wide

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]
ROOT = "#dibs-simulation"
LIGHT, DARK = "rgb(27, 31, 36)", "rgb(230, 237, 243)"
CRASH, PAUSE, FENCE = "Crash a holder", "Pause a holder past its lease", "Now with a fence"


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def step(page: Page, seconds: int) -> None:
    """Click in the page: Playwright would wait for frames around each click."""
    button = page.get_by_role("button", name="Step 1 s")
    button.evaluate("(it, clicks) => { while (clicks--) it.click(); }", seconds)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("scenario", "value", "result"),
    [
        (PAUSE, "1", "Damage: Ana writes 1 over 2 with stale token 1. It is accepted."),
        (FENCE, "2", "Refused: Ana writes 1 with stale token 1. The fence has seen 4."),
    ],
)
def test_a_late_write(bare: Path, open_page: Open, scenario: str, value: str, result: str) -> None:
    """On a page with a strict Content-Security-Policy; a violation on the console fails the test."""
    page = open_page(bare, reduced_motion="reduce")
    press(page, scenario)
    step(page, 20)
    expect(page.locator(".sim-value")).to_have_text(value)
    expect(page.locator(".sim-last")).to_have_text(result)
    expect(page.get_by_role("log")).to_contain_text("Ana looks at its hold and is told: LockLost.")
    queue = page.get_by_label("Queue in the store").get_by_role("listitem")
    expect(queue.first).to_have_text("Dan: lock, token 4")


@pytest.mark.gate
def test_a_scenario_runs_to_its_end_by_itself_and_stops(site: Path, open_page: Open) -> None:
    page = open_page(site / "simulation.html", before=lambda page: page.clock.install(time=0))
    page.clock.pause_at(60_000)
    page.get_by_label("Speed").select_option("3")
    press(page, CRASH)
    page.clock.run_for(4000)
    expect(page.locator(".sim-clock")).to_have_text("10.0 s")
    expect(page.get_by_label("Queue in the store").get_by_role("listitem").first).to_have_text("Bob: lock, token 2")
    expect(page.get_by_role("button", name="Run")).to_be_visible()


@pytest.mark.gate
def test_it_can_be_read_in_every_theme(site: Path, open_page: Open) -> None:
    """Furo notes the reader's choice in `data-theme`; without Furo it is the root's colour scheme."""
    page = open_page(site / "simulation.html", width=360, reduced_motion="reduce")
    for scenario in (PAUSE, FENCE):
        press(page, scenario)
        press(page, "Crash Dan")
        step(page, 21)
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


@pytest.mark.gate
def test_without_javascript_the_page_says_what_is_missing(bare: Path, open_page: Open) -> None:
    page = open_page(bare, java_script_enabled=False)
    expect(page.locator(f"{ROOT} > noscript")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)


# Random faults from one seed: check the model after every second, and against the same seconds cut into pieces.
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


def test_the_model_keeps_what_dibs_promises(bare: Path, open_page: Open) -> None:
    """At most one valid hold, first come first served, and with a fence no lost update, whatever happens to workers."""
    page = open_page(bare, reduced_motion="reduce")
    for fence in (False, True):
        found = page.evaluate(_STORM, fence)
        assert found["wrong"] == []
        assert found["late"] > 20, "the storm made hardly any late write"
