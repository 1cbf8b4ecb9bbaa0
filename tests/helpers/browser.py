"""A headless browser of the system, and pages that fail a test for what a user would never see.

What must not happen on any page: a script that throws, a violation of the content policy, a dialog, a request to
another server.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MILLISECONDS = 20_000
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
});
"""
CHAT_READY = "document.querySelector('#welcome-model').textContent !== ''"
"""The page of a server has heard from it."""
EXPECTED = "Failed to load resource"
"""What a console says of a status such as 401, which the page itself handles."""


def executable() -> str | None:
    """The first browser of the system that Playwright can drive."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def launched(path: str) -> Iterator[Browser]:
    """A browser while the context lasts."""
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Faults:
    """What went wrong on a page without being seen."""

    found: list[str] = field(default_factory=list)

    def watch(self, page: Page, origin: str) -> None:
        page.on("pageerror", lambda error: self.found.append(f"script: {error}"))
        page.on("dialog", lambda dialog: self.found.append(f"dialog: {dialog.message}"))
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("request", lambda request: self._see(request.url, origin))

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not text.startswith(EXPECTED):
            self.found.append(f"console: {text}")

    def _see(self, url: str, origin: str) -> None:
        if not url.startswith((origin, "data:")):
            self.found.append(f"request: {url}")


def until(page: Page, condition: str) -> None:
    """Waits until an expression of the page's own language holds; the policy forbids Playwright's way to wait."""
    deadline = time.monotonic() + PATIENCE_MILLISECONDS / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def patient(page: Page, condition: Callable[[], bool]) -> None:
    """Waits until something holds on this side, while the page goes on."""
    deadline = time.monotonic() + PATIENCE_MILLISECONDS / 1000
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        page.wait_for_timeout(20)


@contextlib.contextmanager
def opened(browser: Browser, url: str, ready: str = CHAT_READY, **options: Any) -> Iterator[Page]:
    """The page at an address in a fresh profile, once `ready` holds; its faults are raised at the end."""
    context = browser.new_context(**{"viewport": {"width": 1100, "height": 800}, **options})
    context.set_default_timeout(PATIENCE_MILLISECONDS)
    context.add_init_script(WATCH)
    page, faults = context.new_page(), Faults()
    faults.watch(page, url.partition("#")[0].rstrip("/"))
    try:
        page.goto(url)
        until(page, ready)
        yield page
        faults.found += page.evaluate("window.violations")
        assert not faults.found, faults.found
    finally:
        context.close()
