"""A headless Chromium for pages that change while they are looked at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")


@contextmanager
def opened(url: str, width: int = 1280, height: int = 800) -> Iterator[tuple[Any, list[str]]]:
    """A page of the system's Chromium (playwright's Page), and the errors it has had so far."""
    api = pytest.importorskip("playwright.sync_api")
    errors: list[str] = []
    with api.sync_playwright() as playwright:
        # As root, as in a container, Chromium has no sandbox of its own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": width, "height": height})
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda message: errors.append(message.text))
            page.goto(url)
            yield page, errors
        finally:
            browser.close()
