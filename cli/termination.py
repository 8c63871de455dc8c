"""SIGTERM ends a run the way Ctrl-C does: everything that is half done is taken back, and a sentence says so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """The process was asked to end. Like KeyboardInterrupt it is nobody's error, so nothing may swallow it."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise :class:`Terminated` in the main thread on the first SIGTERM, and ignore more while the run unwinds."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread handle signals
        return
    earlier = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


def _raise(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated
