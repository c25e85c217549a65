"""Headless Chromium by Playwright: open a page, look, point, press, read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find() -> str | None:
    """The system's browser."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A browser with an empty profile; use it as a context."""

    def __init__(self, program: str):
        self.program = program

    def __enter__(self) -> Browser:
        from playwright.sync_api import sync_playwright

        self.driver = sync_playwright().start()
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        self.browser = self.driver.chromium.launch(executable_path=self.program, args=flags)
        return self

    def __exit__(self, *_: object) -> None:
        self.browser.close()
        self.driver.stop()

    def page(
        self,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        touch: bool = False,
        scripts: bool = True,
        permissions: tuple[str, ...] = (),
    ) -> Page:
        """A tab that shares nothing with the others."""
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            has_touch=touch,
            is_mobile=touch,
            java_script_enabled=scripts,
            permissions=list(permissions),
        )
        return Page(context)


class Page:
    """One tab, and what it complained about."""

    def __init__(self, context: Any):
        self.context = context
        self.tab = context.new_page()
        self._messages: list[str] = []
        self._requests: list[str] = []
        self.tab.on("console", lambda said: self._messages.append(f"console: {said.text}"))
        self.tab.on("pageerror", lambda error: self._messages.append(f"exception: {error}"))
        self.tab.on("requestfailed", lambda request: self._messages.append(f"not loaded: {request.url}"))
        self.tab.on("request", lambda request: self._requests.append(request.url))

    def close(self) -> None:
        self.context.close()

    def open(self, file: Path, query: str = "") -> None:
        """Load a file and wait for it."""
        self.tab.goto(file.resolve().as_uri() + query)

    def js(self, code: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        return self.tab.evaluate(code)

    def settle(self) -> None:
        """Two frames."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def point(self, x: float, y: float) -> None:
        self.tab.mouse.move(x, y)

    def tap(self, x: float, y: float) -> None:
        self.tab.touchscreen.tap(x, y)

    def press(self, key: str) -> None:
        self.tab.keyboard.press(key)

    def messages(self) -> list[str]:
        """What the page complained about: console calls, exceptions, and what it could not load."""
        self.settle()
        return self._messages

    def requests(self) -> list[str]:
        return self._requests
