"""The live page in a real Chromium, of two schedulers and an executor that serve the real model."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from matplotlib.image import imread
from playwright.sync_api import Browser, Page, expect
from specsched_client import Client, Sampling

from tests.integration.browser import DESK, PHONE, TIMEOUT_MS, chromium, watched
from tests.integration.processes import (
    ExecutorProcess,
    SchedulerProcess,
    start_executor,
    start_scheduler,
    wait_until,
)
from tests.integration.test_metrics import address, fetch, values
from tests.repository import ROOT

SCREENSHOT = ROOT / "docs" / "page.png"
SCREENSHOT_SIZE = (1280, 1500)
SCREENSHOT_LOADS = (1, 2, 4, 6, 8, 8, 6, 3)
"""Requests at once, one load after the other."""
PROMPTS = (
    "Why is the sky blue?",
    "List three fruits.",
    "Tell me a story about a fox.",
    "What is rain?",
    "Write a short poem.",
    "Name the planets.",
    "How does bread rise?",
    "Count to twenty.",
)

expect.set_options(timeout=TIMEOUT_MS)


@dataclass
class Pair:
    scheduler: SchedulerProcess
    shadow: SchedulerProcess
    executor: ExecutorProcess

    @property
    def url(self) -> str:
        return f"http://{address(self.scheduler)}/"

    def is_at_rest(self) -> bool:
        """Whether every step that was decided has been reported and learned from."""
        found = self.metrics()
        return found["specsched_reports_total",] >= found["specsched_decisions_total",]

    def metrics(self) -> dict[tuple[str, ...], float]:
        return values(fetch(address(self.scheduler)))


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[Pair]:
    run_dir = tmp_path_factory.mktemp("page")
    run_dir.chmod(0o700)
    with ExitStack() as stack:
        options = ("--page-promote", "--http-address", "127.0.0.1:0")
        scheduler = stack.enter_context(start_scheduler(run_dir, *options))
        executor = stack.enter_context(start_executor(run_dir, "--max-num-seqs", "8"))
        executor.wait_until_attached()  # the first one is followed, the next one shadows it
        shadow = stack.enter_context(start_scheduler(run_dir, *options, name="next"))
        executor.wait_until_attached(count=2)
        yield Pair(scheduler, shadow, executor)


@pytest.fixture(scope="module")
def loaded(pair) -> Pair:
    """After some requests."""
    load(pair.executor, PROMPTS[:4], num_tokens=32)
    return pair


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def load(executor: ExecutorProcess, prompts: Sequence[str], *, num_tokens: int) -> None:
    """All prompts answered at once."""

    def ask(prompt: str) -> None:
        with Client(executor.target) as client:
            client.generate(prompt, Sampling(max_tokens=num_tokens, ignore_eos=True, temperature=0))

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def until_live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text("Live")


def table_of(page: Page, title: str) -> list[list[str]]:
    """Rows of the table below a chart. Opening fills it, in an event of its own."""
    chart = page.locator("figure", has=page.get_by_role("heading", name=title, exact=True))
    chart.locator("summary").click()
    expect(chart.locator("tbody tr")).not_to_have_count(0)
    rows = chart.locator("tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


# ===================== What it says =====================


def test_a_shadow_says_that_it_is_one(pair, browser):
    with watched(browser, f"http://{address(pair.shadow)}/") as it:
        until_live(it.page)
        expect(it.page.locator("#verdict")).to_contain_text("Shadow")
        expect(it.page.locator("#verdict")).to_contain_text("default is followed.")
        times = it.page.locator("figure", has_text="Step time")
        expect(times.locator(".empty")).to_contain_text("Another scheduler is followed")
        expect(times.locator("canvas")).to_have_count(0)
    assert it.complaints == []


def test_values_are_those_of_the_metrics(loaded, browser):
    wait_until(loaded.is_at_rest)
    with watched(browser, loaded.url) as it:
        until_live(it.page)
        found = loaded.metrics()

        def told(name: str) -> str:
            return it.page.locator(f"#plans data[data-name={name}]").get_attribute("value")

        assert float(told("num_decisions")) == found["specsched_decisions_total",]
        for field, reason in (
            ("num_missed", "missed"),
            ("num_invalid", "invalid"),
            ("num_policy_errors", "policy_error"),
        ):
            assert float(told(field)) == found["specsched_unanswered_requests_total", reason]
        steps = values(fetch(address(loaded.executor)))
        # The executor tells them each second.
        wait_until(lambda: float(told("num_planned")) == steps["specsched_planned_steps_total",])
        for (name, *labels), count in steps.items():
            if name == "specsched_fallback_steps_total" and count:
                assert float(told(f"fallback_{labels[0]}")) == count
        survival = table_of(it.page, "Survival by draft position")
        assert survival
        for position, predicted, observed in survival:
            for name, value in (("predicted", predicted), ("observed", observed)):
                expected = found[f"specsched_survival_{name}", position]
                assert float(value) == pytest.approx(expected, rel=1e-3)
        times = it.page.locator("figure", has_text="Step time").locator(".summary").inner_text()
        steps = int(re.search(r"over ([\d,]+) steps", times)[1].replace(",", ""))
        measured_ms = float(re.search(r"measured ([\d.]+) ms", times)[1])
        assert steps == found["specsched_judged_steps_total",]
        mean_ms = found["specsched_judged_step_seconds_total",] / steps * 1e3
        assert measured_ms == pytest.approx(mean_ms, abs=0.005)
        drafts = it.page.locator("figure", has_text="Survival").locator(".summary").inner_text()
        judged, accepted = re.search(r"Of ([\d,]+) verified drafts ([\d,]+)", drafts).groups()
        assert int(judged.replace(",", "")) == found["specsched_judged_draft_tokens_total",]
        assert int(accepted.replace(",", "")) == found["specsched_judged_accepted_tokens_total",]
        requests = [int(row[0]) for row in table_of(it.page, "Budget by batch size")]
        assert requests == sorted(requests) != []
        assert it.page.locator("#identity").inner_text().startswith("0.")


def test_each_chart_is_drawn_and_nothing_complains(loaded, browser):
    for scheme in ("light", "dark"):
        with watched(browser, loaded.url, DESK, scheme) as it:
            until_live(it.page)
            charts = it.page.locator("figure canvas")
            expect(charts).to_have_count(7)
            for chart in charts.all():
                assert chart.evaluate(NUM_COLOURS) > 3
            ground = it.page.evaluate("getComputedStyle(document.body).backgroundColor")
            shades = [int(each) for each in re.findall(r"\d+", ground)]
            assert (min(shades) > 200) if scheme == "light" else (max(shades) < 60)
            assert it.page.evaluate(LOWEST_CONTRAST) >= 4.5
        assert it.complaints == []
        assert it.foreign == []


NUM_COLOURS = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}"""

# WCAG 2.2, 1.4.3: of every text that is shown against the ground behind it.
LOWEST_CONTRAST = """() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => [0.2126 * r, 0.7152 * g, 0.0722 * b].length &&
    0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
  };
  const texts = [...document.querySelectorAll("body *")].filter(each =>
    each.checkVisibility() && [...each.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
  return Math.min(...texts.map(each => {
    const pair = [luminance(parts(getComputedStyle(each).color)), luminance(ground(each))];
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_on_a_phone(loaded, browser, scheme):
    with watched(browser, loaded.url, PHONE, scheme) as it:
        until_live(it.page)
        expect(it.page.locator("figure canvas")).to_have_count(7)
        width = it.page.evaluate("document.documentElement.scrollWidth")
        assert width == PHONE[0]
        assert it.page.evaluate(NUM_CUT_OFF) == 0


# Elements that reach beyond the right edge, tables that scroll by themselves left out.
NUM_CUT_OFF = """() => [...document.querySelectorAll("main *")].filter(each =>
  !each.closest(".table, details") && each.getBoundingClientRect().right > innerWidth + 1).length"""


def test_what_happens_is_drawn_without_a_reload(loaded, browser):
    with watched(browser, loaded.url) as it:
        until_live(it.page)
        number = it.page.locator("#plans data[data-name=num_decisions]")
        before = float(number.get_attribute("value"))
        load(loaded.executor, PROMPTS[:2], num_tokens=8)
        wait_until(lambda: float(number.get_attribute("value")) > before)
        after = loaded.metrics()["specsched_decisions_total",]
        wait_until(lambda: float(number.get_attribute("value")) == after)
    assert it.complaints == []


# ===================== What it does =====================


def test_a_button_promotes(loaded, browser):
    with watched(browser, loaded.url) as it:
        until_live(it.page)
        it.page.on("dialog", lambda dialog: dialog.accept())
        lanes = it.page.locator("#lanes")
        for name, words in (("next", "Shadow"), ("default", "")):
            it.page.get_by_role("button", name=f"Promote {name}").click()
            expect(it.page.locator("#details")).to_contain_text(f"follows {name} from step")
            expect(lanes.locator("tr", has_text=name)).to_contain_text("active")
            expect(it.page.locator("#verdict")).to_contain_text(words)
            role = "shadow" if words else "active"
            assert loaded.metrics()["specsched_attachment_role", role] == 1
    assert it.complaints == []


def test_the_screenshot_of_the_readme(loaded, browser, request):
    width, height = SCREENSHOT_SIZE
    if request.config.getoption("--update-screenshot"):
        with watched(browser, loaded.url, SCREENSHOT_SIZE) as it:
            until_live(it.page)
            for num_requests in SCREENSHOT_LOADS:
                load(loaded.executor, PROMPTS[:num_requests], num_tokens=96)
            last = threading.Thread(
                target=load, args=(loaded.executor, PROMPTS[:4]), kwargs={"num_tokens": 96}
            )
            last.start()
            expect(it.page.locator("#verdict .why")).to_contain_text("4 requests with")
            it.page.screenshot(path=SCREENSHOT)
            last.join()
    picture = imread(SCREENSHOT)
    assert picture.shape[:2] == (height, width)
    assert picture[..., :3].std() > 0.05
    assert f"docs/{SCREENSHOT.name}" in (ROOT / "README.md").read_text()


def test_who_is_gone_is_told(loaded, browser):
    """The last test: it takes the executor away, then the scheduler."""
    with watched(browser, loaded.url) as it:
        until_live(it.page)
        loaded.executor.terminate()
        expect(it.page.locator("#verdict")).to_contain_text("No executor is attached")
        expect(it.page.locator("#details")).to_be_hidden()
        loaded.scheduler.terminate()
        expect(it.page.locator("#notice")).to_contain_text("The scheduler ended at")
        expect(it.page.locator("#connection")).to_have_text("Scheduler ended")
        at = address(loaded.scheduler)
        run_dir = loaded.scheduler.socket_path.parent.parent
        with start_scheduler(run_dir, "--http-address", at) as again:
            until_live(it.page)
            expect(it.page.locator("#notice")).to_be_hidden()
            again.kill()
            expect(it.page.locator("#notice")).to_contain_text("Connection lost at")
