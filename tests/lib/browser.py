"""A headless Chromium for tests: a page from a file, keys, what it asks of the network, what it complains of.

It is spoken to through a pipe (https://chromedevtools.github.io/devtools-protocol/): no port, no library.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome") or ""
_PATIENCE = 300.0  # seconds; a machine that is busy starts it in a minute or two
_FLAGS = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1400,1000"),
    *("--no-sandbox",) * (os.geteuid() == 0),
)
_COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


class Browser:
    """`with Browser() as browser:` has one tab. `complaints` are exceptions and lines of its console, `asked`
    the addresses that it has fetched."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._seen: list[str] = []  # the names of other events
        self._last = 0
        self._rest = b""

    def __enter__(self) -> Self:
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        home = self._home.name
        words = (PROGRAM, *_FLAGS, f"--user-data-dir={home}", "--remote-debugging-pipe", "about:blank")
        self._process = subprocess.Popen(  # it reads from 3 and writes to 4
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *words],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": home, "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home},
            start_new_session=True,
        )
        for descriptor in (theirs_in, theirs_out):
            os.close(descriptor)
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (self._write, self._read):
            os.close(descriptor)  # at the end of its pipe it ends
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._home.cleanup()

    def open(self, page: Path, fragment: str = "") -> None:
        """Until it is loaded."""
        self._seen.clear()
        self.call("Page.navigate", url=f"{page.as_uri()}?{self._last}#{fragment}")
        while "Page.loadEventFired" not in self._seen:
            self._hear()

    def see(self, expression: str) -> Any:
        """The value of an expression of the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str, wanted: object = True) -> None:
        """Until the expression has this value."""
        self._until(lambda: self.see(expression) == wanted, f"{expression}: {wanted!r}")

    def press(self, *keys: str) -> None:
        """Each of them a character, or a key by its name: Enter, Escape, ArrowDown."""
        for key in keys:
            code = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40}.get(key, 0)
            text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
            press: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **press, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **press)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        self._last += 1
        command = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while (found := self._hear()).get("id") != self._last:
            pass
        assert "error" not in found, found
        result: dict[str, Any] = found["result"]
        return result

    def _hear(self) -> dict[str, Any]:
        """The next message, an answer or an event."""
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], _PATIENCE)[0], "the browser does not answer"
            chunk = os.read(self._read, 1 << 16)
            assert chunk, f"the browser has ended: {self._process.poll()}"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        self._note(found.get("method", ""), found.get("params", {}))
        return found

    def _note(self, event: str, what: dict[str, Any]) -> None:
        if event in _COMPLAINTS:
            self.complaints.append(json.dumps(what))
        elif event == "Network.requestWillBeSent":
            self.asked.append(what["request"]["url"])
        elif event:
            self._seen.append(event)

    def _until(self, true: Callable[[], bool], what: str) -> None:
        begun = time.monotonic()
        while not true():
            assert time.monotonic() - begun < _PATIENCE, what
            time.sleep(0.02)
