"""Headless Chromium over its DevTools pipe, with the standard library alone: open a page, look, point, press, read."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio",
    "--no-default-browser-check", "--remote-debugging-pipe",
)  # fmt: skip


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A browser of one's own, with an empty profile; use it as a context."""

    def __init__(self, program: str):
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        ours_in, theirs_out = _high_pipe()
        theirs_in, ours_out = _high_pipe()

        def wire() -> None:
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self.folder}"],
            preexec_fn=wire, pass_fds=(3, 4), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self.reader, self.writer = ours_in, ours_out
        self.buffer = b""
        self.ids = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("Browser.close")
            self.process.wait(timeout=60)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.reader)
        os.close(self.writer)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come meanwhile are kept."""
        me = next(self.ids)
        message = {"id": me, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.writer, data) :]
        while (answer := self.receive()).get("id") != me:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error'].get('message')}")
        return answer.get("result", {})

    def receive(self) -> dict[str, Any]:
        """The next message; an event is kept."""
        end = time.monotonic() + 120.0
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.reader], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self.reader, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser said nothing more")
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        self.events += [message] if "method" in message else []
        return message

    def wait(self, method: str, session: str) -> None:
        """Until an event of this kind, which is forgotten, has come."""
        while not (found := [e for e in self.events if (e["method"], e.get("sessionId")) == (method, session)]):
            self.receive()
        self.events.remove(found[0])

    def page(self, width: int = 1280, height: int = 900, dark: bool = False, touch: bool = False) -> Page:
        return Page(self, width, height, dark, touch)


class Page:
    """One tab, which shares nothing with the others."""

    def __init__(self, browser: Browser, width: int, height: int, dark: bool, touch: bool):
        self.browser = browser
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def close(self) -> None:
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def open(self, file: Path) -> None:
        """Load a file and wait until it and two frames are done."""
        self.call("Page.navigate", url=file.resolve().as_uri())
        self.browser.wait("Page.loadEventFired", self.session)

    def js(self, code: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        out = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in out:
            raise RuntimeError(out["exceptionDetails"].get("exception", {}).get("description", "error in the page"))
        return out["result"].get("value")

    def settle(self) -> None:
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def point(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, x: float, y: float) -> None:
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def messages(self) -> list[str]:
        """What the page complained about: console calls, exceptions, and the browser's own log."""
        self.settle()
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        mine = (e for e in self.browser.events if e.get("sessionId") == self.session)
        return [f"{e['method']}: {e['params']}" for e in mine if e["method"] in kinds]

    def requests(self) -> list[str]:
        sent = (e for e in self.browser.events if e["method"] == "Network.requestWillBeSent")
        return [e["params"]["request"]["url"] for e in sent if e.get("sessionId") == self.session]


def _high_pipe() -> tuple[int, int]:
    """A pipe whose ends are not 3 or 4, which the browser wants for itself."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in low)
    for fd in low:
        os.close(fd)
    return high[0], high[1]
