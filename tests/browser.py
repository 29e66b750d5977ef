"""A headless Chromium, spoken to over its debugging pipe: no package, no port, no network."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
    "--remote-debugging-pipe",
)  # fmt: skip


def find_browser() -> str | None:
    """The path of a Chromium on this machine, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@dataclass
class Page:
    """One open tab. ``events`` collects what the browser reported, by method name."""

    commands: IO[bytes]
    answers: IO[bytes]
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    last_id: int = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol and wait for its result."""
        self.last_id += 1
        message: dict[str, Any] = {"id": self.last_id, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while (answer := self._read()).get("id") != self.last_id:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, path: Path, width: int, height: int = 844, scheme: str = "light") -> None:
        """Load a local file in a window of that size and wait until everything is there."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page (promises are awaited)."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def complaints(self) -> list[str]:
        """Everything that the page wrote to the console, threw, or failed to load."""
        names = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded",
                 "Network.loadingFailed")  # fmt: skip
        return [json.dumps(event) for event in self.events if event.get("method") in names]

    def requested(self) -> list[str]:
        """The addresses that the page asked for, its own included, data: addresses left out."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
            and not event["params"]["request"]["url"].startswith("data:")
        ]

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        result = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(result["data"]))

    def _read(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser ended unexpectedly")
            message += byte
        return json.loads(message)


@contextmanager
def browser_page(executable: str) -> Iterator[Page]:
    """A tab of a fresh browser with a profile of its own; both are gone afterwards."""
    # The child reads commands from descriptor 3 and writes answers to descriptor 4.
    command_end, commands = os.pipe()
    answers, answer_end = os.pipe()
    script = f'exec "$0" "$@" 3<&{command_end} 4>&{answer_end}'
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        open(commands, "wb") as writer,
        open(answers, "rb") as reader,
        subprocess.Popen(
            ["bash", "-c", script, executable, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(command_end, answer_end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        os.close(command_end)
        os.close(answer_end)
        page = Page(writer, reader)
        try:
            # A tab of our own: the first one may still be loading the browser's start page.
            target = page.call("Target.createTarget", url="about:blank")["targetId"]
            attached = page.call("Target.attachToTarget", targetId=target, flatten=True)
            page.session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.call(f"{domain}.enable")
            yield page
            page.session = ""
            page.call("Browser.close")
        finally:
            process.terminate()
            process.wait(timeout=20)
