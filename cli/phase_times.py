"""When a run loaded, warmed up and worked, so that samples taken from outside can be laid over it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

Phase = Literal["load", "warm-up", "request"]


class PhaseTimes:
    """Stretches of a run in seconds of the machine's monotonic clock, which other processes can read too."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Note when the block began and ended; one that fails is not noted."""
        started_s = time.monotonic()
        yield
        ended_s = time.monotonic()
        self._entries.append({"phase": phase, "started_monotonic_s": started_s, "ended_monotonic_s": ended_s})

    def to_json(self) -> list[dict[str, Any]]:
        """The dump's ``phases``, in the order they ended."""
        return list(self._entries)
