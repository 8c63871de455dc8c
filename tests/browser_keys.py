"""A page driven by keys in headless Chromium, over the browser's own debugging pipe: no driver, no port, no network."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT_S = 60
ABOVE_STANDARD_FDS = 64
ARROW_RIGHT = {"key": "ArrowRight", "code": "ArrowRight", "windowsVirtualKeyCode": 39}


class BrowserTroubleError(RuntimeError):
    """The browser did not do what it was asked for."""


class Page:
    """One page of one browser."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._pending = b""
        self._number = 0
        self._session = ""
        self._events: list[str] = []
        targets = self._ask("Target.getTargets", {})["targetInfos"]
        target = next(found["targetId"] for found in targets if found["type"] == "page")
        self._session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._ask("Page.enable", {})

    def open(self, address: str, *, has_scripts: bool = True) -> None:
        """Load a page to its end."""
        self._ask("Emulation.setScriptExecutionDisabled", {"value": not has_scripts})
        self._events.clear()
        self._ask("Page.navigate", {"url": address})
        deadline_s = time.monotonic() + TIMEOUT_S
        while "Page.loadEventFired" not in self._events:
            self._events.append(str(self._message(deadline_s).get("method")))

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        return self._ask("Runtime.evaluate", {"expression": expression, "returnByValue": True})["result"].get("value")

    def press(self, key: dict[str, Any], times: int) -> None:
        """Press and release a key, as a person would."""
        for _ in range(times):
            self._ask("Input.dispatchKeyEvent", {"type": "rawKeyDown", **key})
            self._ask("Input.dispatchKeyEvent", {"type": "keyUp", **key})

    def keep_picture(self, path: Path) -> None:
        """What is in the window, as PNG."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", {"format": "png"})["data"]))

    def _ask(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._writer, json.dumps(message).encode("utf-8") + b"\0")
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._message(deadline_s)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserTroubleError(f"{method}: {answer['error'].get('message')}")
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(str(answer.get("method")))

    def _message(self, deadline_s: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            is_ready, _, _ = select.select([self._reader], [], [], max(0.0, deadline_s - time.monotonic()))
            chunk = os.read(self._reader, 1 << 16) if is_ready else b""
            if not chunk:
                raise BrowserTroubleError("the browser ended" if is_ready else f"no answer within {TIMEOUT_S} s")
            self._pending += chunk
        text, _, self._pending = self._pending.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found


@contextmanager
def opened_browser(words: Sequence[str]) -> Iterator[Page]:
    """A browser that is ended with the block; ``words`` is its command without the debugging flags."""
    reads, asks = os.pipe(), os.pipe()
    # The browser wants its ends at 3 and 4, which must not be ones that these copies overwrite.
    child_reads, child_writes = (
        fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, ABOVE_STANDARD_FDS) for end in (asks[0], reads[1])
    )
    actions = [(os.POSIX_SPAWN_DUP2, child_reads, 3), (os.POSIX_SPAWN_DUP2, child_writes, 4)]
    silent = os.open(os.devnull, os.O_WRONLY)
    actions += [(os.POSIX_SPAWN_DUP2, silent, 1), (os.POSIX_SPAWN_DUP2, silent, 2)]
    process = os.posix_spawn(
        words[0], [*words, "--remote-debugging-pipe"], os.environ, file_actions=actions, setsid=True
    )
    for end in (child_reads, child_writes, asks[0], reads[1], silent):
        os.close(end)
    try:
        yield Page(reads[0], asks[1])
    finally:
        os.close(reads[0])
        os.close(asks[1])
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)


def swipe_troubles(words: Sequence[str], address: str, folder: Path) -> list[str]:
    """Move the first swipe ten steps by the arrow key, then look at the page without scripts; what went wrong."""
    try:
        with opened_browser(words) as page:
            page.open(address)
            page.value("document.querySelector('.swipe input[type=range]').scrollIntoView({block: 'start'})")
            page.value("document.querySelector('.swipe input[type=range]').focus()")
            page.press(ARROW_RIGHT, 10)
            box = "document.querySelector('.swipe').parentElement"
            edge = page.value(f"{box}.style.getPropertyValue('--at')")
            is_over = page.value(f"{box}.classList.contains('over')")
            clip = page.value(f"getComputedStyle({box}.querySelectorAll('figure')[1]).clipPath")
            page.keep_picture(folder / "swipe.png")
            page.open(address, has_scripts=False)
            is_hidden = page.value("document.querySelector('.swipe').hidden")
            page.value("document.querySelector('.compare').scrollIntoView({block: 'start'})")
            page.keep_picture(folder / "no-script.png")
    except (BrowserTroubleError, OSError) as error:
        return [f"swipe: {error}"]
    troubles = [] if (edge, is_over) == ("60%", True) else [f"swipe: ten arrows moved the edge to {edge!r}, not 60%"]
    troubles += [] if "60%" in str(clip) else [f"swipe: the upper picture is cut by {clip!r}, not at 60%"]
    return troubles + ([] if is_hidden else ["swipe: without scripts its controls are shown, and nothing moves them"])
