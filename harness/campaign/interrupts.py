"""Ctrl-C and termination requests, noted instead of raised.

While a campaign runs, a signal only raises a counter that the loops look at. So no exception can strike between the
start of a process and the moment somebody waits for it, nor halfway through writing a record.
"""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Self


@dataclass
class Interrupts:
    """Counts interrupts. As a context manager it listens to SIGINT, SIGTERM and SIGHUP.

    A signal that was ignored when the program began (``nohup``, a background job) stays ignored. Outside the main
    thread, where Python delivers no signals, it only counts what :meth:`request` is told.
    """

    count: int = 0
    _previous: dict[signal.Signals, Any] = field(default_factory=dict)

    @property
    def requested(self) -> bool:
        return self.count > 0

    def request(self) -> None:
        self.count += 1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                self._listen(name)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _listen(self, name: str) -> None:
        number: signal.Signals | None = getattr(signal, name, None)
        if number is None or signal.getsignal(number) == signal.SIG_IGN:
            return
        self._previous[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
