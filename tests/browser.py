"""A real browser for our pages: Debian's chromium, spoken to over a pipe in its DevTools protocol."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """Headless chromium with a profile of its own."""

    def __init__(self, profile: Path) -> None:
        theirs_in, self.out = os.pipe()
        self.read, theirs_out = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (theirs_in, theirs_out)]

        def wire() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            [str(CHROMIUM), *flags, "--remote-debugging-pipe", "about:blank"],
            preexec_fn=wire,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (theirs_in, theirs_out, *high):
            os.close(fd)
        self.buffer, self.number, self.events = b"", 0, []

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            os.write(self.out, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.read)

    def message(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            assert select.select([self.read], [], [], 60)[0], "chromium does not answer"
            more = os.read(self.read, 1 << 20)
            assert more, "chromium has gone"
            self.buffer += more
        first, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(first)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self.number += 1
        asked = {"id": self.number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(asked).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data) :]
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)


class Page:
    """A page in the browser: what it did, and what its script answers."""

    def __init__(self, browser: Browser, address: str | Path, *, width: int, height: int, dark: bool) -> None:
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.target = target
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        browser.events.clear()
        self.call("Page.navigate", url=address if isinstance(address, str) else address.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in browser.events):
            browser.events.append(browser.message())

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def ask(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and of the security policy."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(event["params"]) for event in self.browser.events if event.get("method") in kinds]

    def requests(self) -> list[str]:
        """Addresses that were asked for, but for pictures inside the page."""
        asked = [
            e["params"]["request"]["url"] for e in self.browser.events if e.get("method") == "Network.requestWillBeSent"
        ]
        return [address for address in asked if not address.startswith("data:")]


@contextlib.contextmanager
def opened(
    browser: Browser, address: str | Path, *, width: int = 1280, height: int = 900, dark: bool = False
) -> Generator[Page]:
    page = Page(browser, address, width=width, height=height, dark=dark)
    yield page
    browser.call("Target.closeTarget", targetId=page.target)
