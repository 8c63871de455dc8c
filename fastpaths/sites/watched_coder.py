"""A coder that was mounted, compared with what it was then whenever it is called; a call may be eager as a whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from fuseproof.fastpaths.module_state import Guard, Snapshot


class WatchedCoder:
    """``coder``, named ``encoder`` or ``decoder``; sealed once its replaced forwards are in place.

    ``libraries`` are where functions live that the library calls by name, and the replacements do not.
    Weights may move and change: the sites read them anew at each call. Nothing else may, nor may anything around the
    call that makes torch do something else than the modules say.
    """

    def __init__(self, name: str, coder: Any, libraries: tuple[ModuleType, ...]) -> None:
        self._name = name
        self._coder = coder
        self._libraries = libraries
        self._guard = Guard()
        self._call = _Call()

    def seal(self) -> None:
        """What the coder is now is what it must be at every call."""
        self._guard.seal(Snapshot(self._coder, namespaces=self._libraries))

    @contextmanager
    def called(self, reason: str | None = None) -> Iterator[str | None]:
        """One call of the whole coder: compared once. Yields why all of it must be eager: ``reason``, or a change."""
        before = self._call.is_running, self._call.reason
        self._call.is_running, self._call.reason = True, reason or self._found()
        try:
            yield self._call.reason
        finally:
            self._call.is_running, self._call.reason = before

    def reason(self) -> str | None:
        """Why nothing may run fused in this thread's call, or None; a module called by itself is compared at once."""
        return self._call.reason if self._call.is_running else self._found()

    def _found(self) -> str | None:
        reason = self._guard.reason()
        return None if reason is None else f"{self._name}: {reason}"


class _Call(threading.local):
    is_running = False
    reason: str | None = None
