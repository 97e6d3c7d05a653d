"""Headless Chromium over its debugging protocol: enough to open a page, press keys, measure and take pictures."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
MISSING = "there is no Chromium here: install the package `chromium`"
_WAIT_S = 30.0


class Page:
    """One tab. `faults` has the errors of its console and of its scripts."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.received_bytes = 0
        self._held: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer: dict[str, Any] = json.loads(self._socket.recv(timeout=_WAIT_S))
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _note(self, method: str, found: Mapping[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.faults.append(str(found["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning"):
            self.faults.append(str(found["args"]))
        elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.faults.append(f"{found['entry']['text']} {found['entry'].get('url', '')}")
        elif method == "Fetch.requestPaused":
            self._held.append(str(found["requestId"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(str(found["request"]["url"]))
        elif method == "Network.dataReceived":
            self.received_bytes += int(found["encodedDataLength"])
        elif method == "Network.responseReceived":
            self.received_bytes += int(found["response"]["encodedDataLength"])

    def size(self, width: int, height: int, *, mobile: bool = False, scale: float = 1) -> None:
        """Set the size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )

    def dark(self, on: bool) -> None:
        """Set the preferred colours."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str) -> None:
        """Open a page, without waiting for it."""
        self.call("Page.navigate", url=url)

    def hold(self, pattern: str) -> None:
        """Keep requests back whose URL matches a pattern, with `*` for any characters, as a busy machine does."""
        self.call("Fetch.enable", patterns=[{"urlPattern": pattern}])

    def release(self) -> None:
        """Let requests go that `hold` has kept back, after the first of them has come and this page was painted."""
        deadline = time.monotonic() + _WAIT_S
        while not self._held:
            assert time.monotonic() < deadline, "nothing was asked for that is held"
            self.painted()
        self.painted()
        self._held.clear()
        self.call("Fetch.disable")

    def painted(self) -> None:
        """Wait until the page as it is was painted."""
        self.value(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"
        )

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript; promises are awaited."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str, limit_s: float = _WAIT_S) -> float:
        """Wait until an expression is true; return the seconds."""
        began = time.monotonic()
        while not self.value(f"(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()"):
            assert time.monotonic() - began < limit_s, f"{expression} did not become true; {str(self.faults)[:1000]}"
            time.sleep(0.01)
        return time.monotonic() - began

    def key(self, name: str, code: int = 0, text: str = "") -> None:
        """Press a key."""
        keys = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **keys, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **keys)

    def tab(self) -> str:
        """Press the tabulator, and return a description of what has the focus."""
        self.key("Tab", 9)
        return str(
            self.value(
                "(e => e.id || e.getAttribute('aria-label') || e.textContent.trim() || e.tagName)"
                "(document.activeElement)"
            )
        )

    def picture(self, path: Path) -> None:
        """Write a picture of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def chromium(folder: Path, *options: str) -> Iterator[Page]:
    """Run a browser with one tab, and its profile in `folder`."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    command += ["--disable-dev-shm-usage", "--remote-debugging-port=0", f"--user-data-dir={folder}", *options]
    with open(folder / "chromium.log", "wb") as log:
        process = subprocess.Popen(
            [*command, "about:blank"], stdout=log, stderr=log, env={**os.environ, "LANG": "en_US.UTF-8"}
        )
        try:
            port = _port(folder, process)
            import urllib.request

            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=_WAIT_S) as answer:
                targets = json.loads(answer.read())
            address = next(one["webSocketDebuggerUrl"] for one in targets if one["type"] == "page")
            with connect(address, max_size=None, compression=None, open_timeout=_WAIT_S) as socket:
                yield Page(socket)
        finally:
            process.kill()
            process.wait(10)


def _port(folder: Path, process: subprocess.Popen[bytes]) -> int:
    file = folder / "DevToolsActivePort"
    deadline = time.monotonic() + 60
    while True:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        assert process.poll() is None, (folder / "chromium.log").read_text()[-2000:]
        assert time.monotonic() < deadline, "the browser did not start"
        time.sleep(0.05)
