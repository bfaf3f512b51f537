"""Pages in a real browser: Debian's Chromium without a window, driven by Playwright, without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
# As root there is no sandbox; without a graphics card 3-D figures, and those alone, are drawn by slow software.
FLAGS = ("--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader")


def executable() -> str:
    """Where Chromium is; the test is skipped where it, or Playwright, is not installed."""
    pytest.importorskip("playwright", reason="no Playwright: pip install playwright")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    return found


@contextmanager
def launched() -> Iterator[Any]:
    """A browser, for a fixture of a module: `with launched() as browser: yield browser`."""
    path = executable()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, path: Path, width: int = 1280, height: int = 800, dark: bool = False) -> Iterator[Any]:
    """A file as a page, offline; what the page complained about fails the test at the end.

    `page.complaints` has the errors of the console so far, uncaught errors and requests to a network.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", offline=True
    )
    page = context.new_page()
    complaints: list[str] = []
    page.complaints = complaints
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: complaints.append(asked.url) if asked.url.startswith("http") else None)
    try:
        page.goto(path.resolve().as_uri())
        yield page
    finally:
        context.close()
    assert not complaints, f"{path.name}: {complaints}"


def drawn(page: Any) -> None:
    """Wait until every Plotly figure of a page is there: lines, or a canvas where it is 3-D."""
    page.wait_for_function(
        """() => {
            const plots = [...document.querySelectorAll('.js-plotly-plot')];
            return plots.length && plots.every(plot => plot.querySelector('.main-svg') && plot._fullData
                && (!plot.querySelector('.gl-container') || !plot._fullLayout._has('gl3d')
                    || plot.querySelector('canvas')));
        }"""
    )
