"""What stands in the columns of a contact sheet: every output of a run, or of videos some frames of one output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from fuseproof.harness.analysis.campaign import CellAnalysis
from fuseproof.harness.media.clip_comparison import ClipComparison
from fuseproof.harness.media.decoding import IMAGE_SUFFIXES
from fuseproof.harness.number_format import count


@dataclass(frozen=True)
class Column:
    """One output of every row, by its request from 0; of a video one frame of it, from 1."""

    request: int
    frame: int | None = None

    @property
    def title(self) -> str:
        return f"output {self.request + 1}" + ("" if self.frame is None else f", frame {self.frame}")


@dataclass(frozen=True)
class Columns:
    """``rest`` says what is not drawn; empty where everything is."""

    shown: tuple[Column, ...]
    rest: str
    worst_frame: int | None = None

    def is_worst(self, column: Column) -> bool:
        """Whether the worst pair of this column's output is drawn in it: of a video, in its worst frame."""
        return column.frame is None or column.frame == self.worst_frame


def sheet_columns(cell: CellAnalysis, requests: int, most: int) -> Columns:
    """At most ``most`` columns: of pictures the outputs, the worst pair's among them, of a video frames of one output.

    That output is the worst pair's, else the first; its frames are spread evenly, and the worst one is among them.
    """
    worst = cell.outputs.worst
    request = 0 if worst is None else worst.request
    frames = _frames(cell, request)
    if frames is None:
        shown = chosen([worst is not None and request == index for index in range(requests)], most)
        rest = f"{count(requests - len(shown), 'more output')} of each run not drawn" if len(shown) < requests else ""
        return Columns(tuple(map(Column, shown)), rest)
    compared = None if worst is None else worst.comparison
    worst_frame = compared.worst_frame if isinstance(compared, ClipComparison) else None
    numbers = _spread(frames, most, worst_frame)
    parts = [f"{len(numbers)} of {frames} frames drawn"] if len(numbers) < frames else []
    parts += [f"{count(requests - 1, 'more output')} of each run not drawn"] if requests > 1 else []
    return Columns(tuple(Column(request, number) for number in numbers), "; ".join(parts), worst_frame)


def chosen(is_needed: Sequence[bool], most: int) -> list[int]:
    """The first places, of which the last ones give way to those that are needed further behind."""
    needed = [index for index, wanted in enumerate(is_needed) if wanted][:most]
    others = [index for index in range(len(is_needed)) if index not in needed]
    return sorted([*needed, *others[: most - len(needed)]])


def _frames(cell: CellAnalysis, request: int) -> int | None:
    """How many frames the longest video of this request has; None where it is a picture."""
    outputs = [run.record.outputs[request] for run in cell.runs.everything.runs if request < len(run.record.outputs)]
    known = [
        output.frames
        for output in outputs
        if output.frames and (output.frames > 1 or PurePosixPath(output.path).suffix.lower() not in IMAGE_SUFFIXES)
    ]
    return max(known, default=None)


def _spread(frames: int, most: int, needed: int | None) -> list[int]:
    """Numbers from 1 to ``frames``, the first and the last among them, the nearest one moved to ``needed``."""
    if frames <= most:
        return list(range(1, frames + 1))
    numbers = [1 + round(index * (frames - 1) / (most - 1)) for index in range(most)]
    if needed is not None and needed not in numbers:
        nearest = min(range(most), key=lambda index: abs(numbers[index] - needed))
        numbers[nearest] = needed
    return numbers
