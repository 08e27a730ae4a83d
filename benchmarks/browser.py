"""A headless Chromium that opens pages, over its debugging pipe: a mouse, keys, pictures, times."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

COMMAND = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run",
)  # fmt: skip


class Browser:
    """One tab. `requests` are the addresses of the last page that are not its own file."""

    def __init__(self, read: int, write: int):
        self.read, self.write, self.buffer, self.number = read, write, b"", 0
        self.session = None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.requests: list[str] = []
        for domain in ("Page", "Network", "Runtime"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **params: object) -> dict:
        """Sends a command of the DevTools protocol and returns its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        return self.wait(lambda answer: answer.get("id") == self.number)["result"]

    def wait(self, wanted) -> dict:
        while True:
            head, mark, tail = self.buffer.partition(b"\0")
            if not mark:
                piece = os.read(self.read, 1 << 16)
                if not piece:
                    raise EOFError("the browser has ended")
                self.buffer += piece
                continue
            self.buffer, answer = tail, json.loads(head)
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if "error" in answer:
                raise RuntimeError(answer["error"])
            if wanted(answer):
                return answer

    def open(self, page: Path, width: int = 1200, height: int = 900) -> None:
        """Opens a file, and waits until it is loaded."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height,
             deviceScaleFactor=1, mobile=False)  # fmt: skip
        self.requests = []
        self("Page.navigate", url=page.absolute().as_uri())
        self.wait(lambda answer: answer.get("method") == "Page.loadEventFired")
        self.requests = [url for url in self.requests if url != page.absolute().as_uri()]

    def value(self, script: str) -> object:
        """Returns what a script evaluates to. Raises RuntimeError where it throws."""
        answer = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        return self.value(f"document.querySelector({selector!r}).textContent")

    def point(self, selector: str, nth: int = 0, click: bool = False) -> None:
        """Moves the mouse to the middle of an element, and clicks."""
        x, y = self.value(
            f"(one => {{ one.scrollIntoView({{block: 'center'}}); const box = "
            "one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] "
            f"}})(document.querySelectorAll({selector!r})[{nth}])"
        )
        kinds = ("mouseMoved", "mousePressed", "mouseReleased") if click else ("mouseMoved",)
        for kind in kinds:
            self("Input.dispatchMouseEvent", type=kind, x=x, y=y, clickCount=int(click),
                 button="left" if click else "none")  # fmt: skip

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def typed(self, selector: str, text: str) -> None:
        self.value(f"document.querySelector({selector!r}).focus()")
        self("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        data = self("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def browser() -> Iterator[Browser | None]:
    """Yields a browser, or None where none is installed."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        yield None
        return
    theirs, write = os.pipe()
    read, mine = os.pipe()
    with tempfile.TemporaryDirectory() as profile:
        # the browser reads commands at descriptor 3 and answers at 4
        script = f'exec "$0" "$@" 3<&{theirs} 4>&{mine}'
        process = subprocess.Popen(
            ["bash", "-c", script, program, *COMMAND, f"--user-data-dir={profile}"],
            pass_fds=(theirs, mine), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs)
        os.close(mine)
        try:
            yield Browser(read, write)
        finally:
            os.close(write)
            process.terminate()
            process.wait(30)
            os.close(read)
