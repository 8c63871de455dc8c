"""Ctrl-C, a termination request and a closed terminal end every command the same way: what is half done is taken back,
a sentence says so, and a second signal cannot cut that short.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """The process was asked to end. Like KeyboardInterrupt it is nobody's error, so nothing may swallow it."""


class _Endings:
    """Raises at the first signal; later ones are taken and forgotten."""

    def __init__(self) -> None:
        self.has_begun = False

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.has_begun:
            return
        self.has_begun = True
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raise KeyboardInterrupt (SIGINT) or :class:`Terminated` (SIGTERM, SIGHUP) in the main thread, once.

    After that the process is ending: its signals stay ignored behind the block, too, while the interpreter shuts down.
    Without one the earlier handlers come back. A signal that was ignored at the start (``nohup``) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread handle signals
        return
    endings = _Endings()
    earlier = {number: signal.getsignal(number) for number in SIGNALS}
    heard = [number for number, handler in earlier.items() if handler not in (signal.SIG_IGN, None)]
    for number in heard:
        signal.signal(number, endings)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_IGN if endings.has_begun else earlier[number])
