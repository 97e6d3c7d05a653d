"""A headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=800,1000"
)


@contextlib.contextmanager
def browsing(folder: Path, *flags: str) -> Iterator[Browser]:
    """Start a browser with an empty profile and one page.

    Args:
        folder: for the profile.
        flags: further flags of the browser.
    """
    assert CHROMIUM is not None
    command = [CHROMIUM, *QUIET.split(), *flags, f"--user-data-dir={folder}", "--remote-debugging-port=0"]
    with subprocess.Popen([*command, "about:blank"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = next(line for line in process.stderr if "DevTools listening on " in line)
            with connect(said.split()[-1], compression=None, max_size=None) as socket:
                yield Browser(socket)
        finally:
            process.kill()


class Browser:
    """A page in a browser.

    Args:
        socket: of the DevTools protocol.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._numbers = itertools.count(1)
        self._session = ""
        self._socket = socket
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result. Events are left out."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self.call("Page.navigate", url=url)
        self.evaluate(
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))"
        )

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def type(self, selector: str, text: str) -> None:
        """Replace the text of an input by typing."""
        self.evaluate(f"document.querySelector({selector!r}).select()")
        self.call("Input.insertText", text=text)

    def press_enter(self) -> None:
        """Press the enter key in the focused element."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        self.call("Input.dispatchKeyEvent", type="keyDown", **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def screenshot(self, path: Path) -> None:
        """Write a picture of the page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
