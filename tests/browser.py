"""A real browser for our pages: Debian's chromium, driven by playwright."""

import contextlib
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Generator["Browser"]:
    """Headless, with a profile of its own; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page in the browser: what it asked for, what it complained of, and what its script answers."""

    def __init__(self, page: "Page") -> None:
        self.page = page
        self.complaints: list[str] = []  # errors and warnings of the console, and of the security policy
        self.requests: list[str] = []  # addresses that were asked for, but for pictures inside the page
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith("data:") or self.requests.append(request.url))

    def ask(self, expression: str) -> Any:
        return self.page.evaluate(expression)


@contextlib.contextmanager
def opened(
    browser: "Browser", address: str | Path, *, width: int = 1280, height: int = 900, dark: bool = False
) -> Generator[Opened]:
    context = browser.new_context(
        viewport={"width": width, "height": height}, is_mobile=width < 600, color_scheme="dark" if dark else "light"
    )
    shown = Opened(context.new_page())
    shown.page.goto(address if isinstance(address, str) else address.resolve().as_uri())
    yield shown
    context.close()
