"""The line of a model's source that a launch comes from: the innermost Python call that is nobody's plumbing."""

from __future__ import annotations

import bisect
import re
import sys
from collections.abc import Sequence

from fuseproof.pipelines.profiling.events import Call

_PLUMBING = re.compile(
    r"(^|/)(torch|triton|accelerate|importlib|typing_extensions)/"
    r"|(^|/)(contextlib|functools|typing|threading|inspect|re|enum|abc|types|copy|weakref|_weakrefset)\.py$"
    r"|(^|/)pipelines/(profiling/.*|stages|progress)"
    r"|(^|/)fastpaths/(gates|operations|trials|graphs|graph_segments|graph_device|graph_values|hoisting|replacements"
    r"|tiers|mounted|approximation|bits|nesting|user_operations|user_families|sites/whole_forward|sites/forms"
    r"|kernels/launching)\.py"
    r"|^<"
)


def is_plumbing(file: str) -> bool:
    """Whether a file is torch's, Triton's, Python's own, or what stands round a fast path: no line to look at."""
    return _PLUMBING.search(file.replace("\\", "/")) is not None


def short_path(file: str) -> str:
    """A file's name with the folder it lies in: files of one name (``forward.py``) are told apart by that."""
    return "/".join(file.replace("\\", "/").rsplit("/", 2)[-2:])


class Frame:
    """A Python call that is open. ``calls`` are the lines in it from which something was called so far, and when."""

    __slots__ = ("call", "is_plumbing", "lines")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.is_plumbing = is_plumbing(call.file)
        self.lines: list[tuple[int, int]] = []

    def called(self, line: int, time: int) -> None:
        """Something was called from ``line``."""
        if line > 0:
            self.lines.append((time, line))


class LineLater:
    """A line that may only be told once its frame has gone on: an operator (``a * b``) tells no line of its own.

    It then lies between the line of the last call before it and that of the next one after it.
    """

    __slots__ = ("_frame", "_line", "_time")

    def __init__(self, frame: Frame | None, line: int | None, time: int) -> None:
        self._frame, self._line, self._time = frame, line, time

    def text(self) -> str | None:
        """``transformers/transformer_longcat_image.py:123``; ``….py:120-123`` where it lies between those;
        ``models/embeddings.py:952 in apply_rotary_emb`` where only the function, which begins there, is known.
        """
        if self._frame is None:
            return None
        call = self._frame.call
        name = short_path(call.file)
        if self._line is not None:
            return f"{name}:{self._line}"
        lines = self._frame.lines
        place = bisect.bisect_right(lines, (self._time, sys.maxsize))
        if not lines:
            return f"{name}:{call.line} in {call.name}"
        first = lines[place - 1][1] if place else call.line
        last = lines[place][1] if place < len(lines) else first
        return f"{name}:{first}-{last}" if last > first else f"{name}:{first}"


def line_of(frames: Sequence[Frame], innermost: Sequence[Call], time: int) -> LineLater:
    """The line behind a launch at ``time``; ``frames`` are the open Python calls, outermost first.

    ``innermost`` are the open calls of C functions.
    """
    inner: Frame | None = None
    for frame in reversed(frames):
        if not frame.is_plumbing:
            if inner is not None:
                return LineLater(frame, inner.call.caller_line or None, time)
            own = [call for call in innermost if call.start >= frame.call.start]
            return LineLater(frame, own[0].line if own and own[0].line > 0 else None, time)
        inner = frame
    return LineLater(None, None, time)
