"""A real headless Chromium for tests of pages, driven by Playwright.

Debian's package, which scripts/setup installs in CI: Playwright would download one of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

TIMEOUT_MS = 60_000
DESK, PHONE = (1280, 900), (375, 812)
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"),
    *("--no-first-run", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; skips without one, fails in CI."""
    program = shutil.which("chromium")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("chromium is missing: scripts/setup installs it")
        pytest.skip("needs chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page. complaints: what its console says; foreign: what it asked of other origins."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


@contextmanager
def watched(
    browser: Browser, url: str, size: tuple[int, int] = DESK, scheme: Any = "light"
) -> Iterator[Watched]:
    """`url` opened in a profile of its own."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=size == PHONE
    )
    context.set_default_timeout(TIMEOUT_MS)
    it = Watched(context.new_page())
    # Chromium tells violations of the Content-Security-Policy in the console as well.
    it.page.on("console", lambda said: it.complaints.append(f"{said.type}: {said.text}"))
    it.page.on("pageerror", lambda error: it.complaints.append(f"error: {error}"))
    it.page.on("request", lambda asked: it.foreign.append(asked.url))
    it.page.goto(url)
    yield it
    it.foreign = [each for each in it.foreign if not each.startswith(url)]
    context.close()
