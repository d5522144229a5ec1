"""Debian's Chromium, headless, and pages of it that fail a test when the browser's console has an error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = Path("/usr/bin/chromium")
WAIT_MS = 120_000
"""Long, for the machine may be busy; nothing waits longer than it takes."""

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
_OF_NETWORK = re.compile(r"Failed to load resource: .*?(?:status of (\d+)|net::(\w+))")


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; the test is skipped where Debian's is not installed."""
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed (apt-get install chromium)")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        yield browser
        browser.close()


class Tab:
    """A page in a context of its own. `expected` are the statuses and network errors that the test is about."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.expected: set[str] = set()
        self.errors: list[str] = []
        viewport = options.pop("viewport", {"width": 1280, "height": 900})
        self.context = browser.new_context(base_url=url, viewport=viewport, accept_downloads=True, **options)
        self.context.set_default_timeout(WAIT_MS)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: message.type in ("error", "warning") and self._note(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _note(self, text: str) -> None:
        found = _OF_NETWORK.search(text)
        if found is None or not self.expected & {each for each in found.groups() if each}:
            self.errors.append(text)

    def close(self) -> None:
        """Ends it. Nothing went wrong, and no markup of a model's or file's name ran."""
        pwned = self.page.evaluate("window.pwned")
        self.context.close()
        assert not self.errors, self.errors
        assert pwned is None

    def open(self, path: str = "/") -> None:
        """Goes to an address of the server."""
        self.page.goto(path)

    def submit(self, name: str, model: bytes, *, seed: int = 0) -> None:
        """Sends a model through the form."""
        self.page.set_input_files("#submit-files", {"name": name, "mimeType": "", "buffer": model})
        if seed:
            self.page.get_by_text("Options", exact=True).click()
            self.page.get_by_label("Seed of the inputs").fill(str(seed))
        self.page.get_by_role("button", name="Start").click()

    def see(self, selector: str, text: str | None = None) -> Any:
        """Waits for an element to be seen."""
        found = self.page.locator(selector, has_text=text).first if text else self.page.locator(selector).first
        found.wait_for(state="visible")
        return found

    def state(self, wanted: str) -> None:
        """Waits for the state of the job that is shown."""
        self.see(f".job .bar .badge[data-state={wanted}]")

    def screenshot(self, name: str) -> None:
        """Keeps a picture of the whole page in the folder that RELAXC_SCREENSHOTS names, if it does."""
        folder = os.environ.get("RELAXC_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.wait_for_timeout(400)  # for figures that are drawn at the next frame
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
