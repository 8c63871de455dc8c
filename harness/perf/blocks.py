"""Perf dumps grouped into blocks of four runs in slot order, and the timers that they can be judged by."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from fuseproof.errors import UsageError
from fuseproof.harness.perf.comparison import distinct_labels
from fuseproof.harness.perf.dump import PerfDump, read_perf_dump
from fuseproof.schedules.order import Orientation, arms_in_order, labels_in_order, orientation

SLOTS = 4
ORDER_FORMS = "ABBA, BAAB, mirrored, or one ABBA or BAAB a block (ABBA,BAAB)"

METRICS: dict[str, tuple[str, Callable[[PerfDump], float | None]]] = {
    "worker": ("Worker E2E", lambda dump: dump.worker_ms),
    "denoise": ("Denoise", lambda dump: dump.run_denoise_ms),
    "client": ("Client E2E including save", lambda dump: dump.client_ms),
}


@dataclass(frozen=True)
class AbbaBlock:
    """Four runs in slot order; ``labels`` tell their files apart."""

    name: str
    orientation: Orientation
    dumps: tuple[PerfDump, ...]
    labels: tuple[str, ...]

    def of_arm(self, arm: str) -> list[tuple[str, PerfDump]]:
        """Label and dump of the arm's two runs ("A" or "B"), in the order they ran."""
        slots = zip(arms_in_order(self.orientation), self.labels, self.dumps, strict=True)
        return [(label, dump) for letter, label, dump in slots if letter == arm]

    @property
    def slot_labels(self) -> tuple[str, ...]:
        """A1 B1 B2 A2, or B1 A1 A2 B2."""
        return labels_in_order(self.orientation)


def read_blocks(paths: Sequence[str | os.PathLike[str]], order: str = "ABBA") -> tuple[AbbaBlock, ...]:
    """Read files in slot order as blocks of four.

    ``order`` is one orientation for all blocks, ``mirrored``, or one orientation a block. UsageError for a number of
    files that is no multiple of four, an order that does not fit, or a file given twice.
    """
    files = [Path(path) for path in paths]
    if not files or len(files) % SLOTS:
        raise UsageError(
            f"--abba reads blocks of {SLOTS} files (A1 B1 B2 A2), got {len(files)}.",
            next_step="Give every run of every block, in the order they ran; leave incomplete blocks out.",
        )
    orientations = parse_order(order, len(files) // SLOTS)
    _refuse_repeated_files(files)
    dumps = [read_perf_dump(path) for path in files]
    labels = distinct_labels(files)
    slots = [slice(start, start + SLOTS) for start in range(0, len(files), SLOTS)]
    names = _block_names([labels[four] for four in slots])
    return tuple(
        AbbaBlock(name, direction, tuple(dumps[four]), labels[four])
        for name, direction, four in zip(names, orientations, slots, strict=True)
    )


def parse_order(text: str, block_count: int) -> tuple[Orientation, ...]:
    """One orientation per block from ``--order``; UsageError naming what was given and what is allowed."""
    if text.strip().lower() == "mirrored":
        return tuple(orientation(index) for index in range(block_count))
    known: dict[str, Orientation] = {"ABBA": "ABBA", "BAAB": "BAAB"}
    words = [word.strip().upper() for word in text.split(",")]
    if any(word not in known for word in words) or len(words) not in {1, block_count}:
        raise UsageError(
            f"--order {text} does not fit {block_count} block(s), expected {ORDER_FORMS}.",
            next_step="Say for each block which arm ran first.",
        )
    orientations = [known[word] for word in words]
    return tuple(orientations * block_count if len(words) == 1 else orientations)


def seconds_of(dump: PerfDump, metric: str) -> float | None:
    """One timer of one run in seconds, None when the dump does not hold it."""
    milliseconds = METRICS[metric][1](dump)
    return None if milliseconds is None else milliseconds / 1000


def _refuse_repeated_files(files: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for path in files:
        resolved = path.resolve()
        if resolved in seen:
            raise UsageError(
                f"{path} is given twice: every slot of a block is a run of its own.",
                next_step="Give the dump of each run once, in the order A1 B1 B2 A2.",
            )
        seen.add(resolved)


def _block_names(labels: Sequence[Sequence[str]]) -> list[str]:
    """What the four file names of each block share (i2v-r1-a1.json ... → i2v-r1), or else the blocks' numbers."""
    names = [_shared_start([str(Path(label).with_suffix("")) for label in block]).strip("-_. /") for block in labels]
    is_telling = all(names) and len(set(names)) == len(names)
    return names if is_telling else [str(number) for number in range(1, len(names) + 1)]


def _shared_start(texts: Sequence[str]) -> str:
    columns = takewhile(lambda characters: len(set(characters)) == 1, zip(*texts, strict=False))
    return "".join(characters[0] for characters in columns)
