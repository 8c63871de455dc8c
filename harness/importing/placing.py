"""From labelled runs to the slots of blocks: which order each block ran in, and what is missing or contradicts it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from fuseproof.errors import UsageError
from fuseproof.harness.campaign.origin import OrderSource
from fuseproof.harness.importing.files import Companions, SourceFile
from fuseproof.harness.importing.labels import Label
from fuseproof.harness.perf.dump import PerfDump
from fuseproof.schedules.order import Orientation, PlannedSlot, arms_in_order, labels_in_order, timed_slots

LARGEST_BLOCK = 1000
LONGEST_NAME = 64
_ORIENTATIONS: tuple[Orientation, Orientation] = ("ABBA", "BAAB")


@dataclass(frozen=True)
class ImportedRun:
    """One dump with its label, what lies beside it, and the time it states (when it was written)."""

    dump: SourceFile
    read: PerfDump
    label: Label
    beside: Companions

    @property
    def written(self) -> datetime | None:
        """The dump's own time stamp; one without a time zone is UTC, as both tools write it."""
        try:
            return utc_moment(datetime.fromisoformat(str(self.read.raw.get("timestamp"))))
        except (ValueError, OverflowError):
            return None

    @property
    def started(self) -> datetime | None:
        """The latest moment at which it can have begun: before the time that it says it worked."""
        try:
            return None if self.written is None else datetime.fromtimestamp(
                self.written.timestamp() - self.read.worker_ms / 1e3, UTC
            )  # fmt: skip
        except (ValueError, OverflowError, OSError):
            return None


@dataclass(frozen=True)
class PlacedSlot:
    """One slot of a block; ``run`` is None where no file was given."""

    planned: PlannedSlot
    run: ImportedRun | None


@dataclass(frozen=True)
class PlacedBlock:
    """A block's four slots in order. ``problem`` says why its order is neither A-B-B-A nor B-A-A-B."""

    cell: str
    number: int
    label: str
    orientation: Orientation
    slots: tuple[PlacedSlot, ...]
    order: OrderSource
    problem: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Labels of the slots without a file."""
        return tuple(slot.planned.label for slot in self.slots if slot.run is None)


def utc_moment(moment: datetime) -> datetime:
    """A moment in UTC, which it is where it names no zone; :class:`OverflowError` at both ends of the calendar."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


def place(runs: Sequence[ImportedRun], cells: Mapping[str, str]) -> list[PlacedBlock]:
    """Every block of every cell, those without a single file included where a number is skipped.

    ``cells`` maps what file names call a workload to the cell's name. Raises :class:`UsageError` naming both files
    when two claim one place.
    """
    groups: dict[str, dict[int, list[ImportedRun]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        groups[run.label.cell][run.label.block_number].append(run)
    blocks = []
    for text, by_number in groups.items():
        numbers = _numbers(sorted(by_number))
        for found, members in sorted(by_number.items()):
            blocks.append(_block(cells[text], numbers[found], members))
        given = set(numbers.values())
        blocks += [_empty(cells[text], number) for number in range(1, max(given) + 1) if number not in given]
    return sorted(blocks, key=lambda block: (list(cells.values()).index(block.cell), block.number))


def cell_names(texts: Sequence[str]) -> dict[str, str]:
    """What file names call the workloads → names a campaign can use; other characters become dashes."""
    names: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:LONGEST_NAME] or "workload"
        name, number = plain, 2
        while name in names.values():
            name = f"{plain[: LONGEST_NAME - 4]}-{number}"
            number += 1
        names[text] = name
    return names


def overlapping(runs: Sequence[ImportedRun]) -> Iterator[tuple[ImportedRun, ImportedRun]]:
    """Runs that, by the times in their dumps, worked at the same time."""
    timed = [(run.started, run.written, run) for run in runs]
    known = sorted(((start, end, run) for start, end, run in timed if start and end), key=lambda entry: entry[1])
    for (_, before_end, before), (start, _, run) in pairwise(known):
        if start < before_end:
            yield before, run


def _numbers(found: Sequence[int]) -> dict[int, int]:
    """Block numbers as the labels give them; counted anew where those start at 0 or skip more than they name."""
    is_kept = found[0] >= 1 and found[-1] <= min(LARGEST_BLOCK, 2 * len(found))
    return {number: number if is_kept else index for index, number in enumerate(found, start=1)}


def _block(cell: str, number: int, members: Sequence[ImportedRun]) -> PlacedBlock:
    _refuse_duplicates(members)
    by_position, direction, source, problem, notes = _ordered(members)
    slots = tuple(
        PlacedSlot(planned, by_position.get(planned.position)) for planned in timed_slots(cell, number, 1, direction)
    )
    label = members[0].label.block
    return PlacedBlock(cell, number, label, direction, slots, source, problem, notes)


def _empty(cell: str, number: int) -> PlacedBlock:
    slots = tuple(PlacedSlot(planned, None) for planned in timed_slots(cell, number, 1, "ABBA"))
    return PlacedBlock(cell, number, "", "ABBA", slots, "file names")


def _refuse_duplicates(members: Sequence[ImportedRun]) -> None:
    seen: dict[object, ImportedRun] = {}
    for run in members:
        place_ = (run.label.arm, run.label.run) if run.label.position is None else run.label.position
        other = seen.setdefault(place_, run)
        if other is not run:
            raise UsageError(
                f"{other.dump.shown} and {run.dump.shown} are both labelled {run.label.slot_text} of block "
                f"{run.label.block} of {run.label.cell}.",
                next_step="Leave one of them out, or name the workload too: --labels '{cell}-{block}-{arm}'.",
            )


Ordered = tuple[dict[int, ImportedRun], Orientation, OrderSource, str | None, tuple[str, ...]]


def _ordered(members: Sequence[ImportedRun]) -> Ordered:
    """Runs by position, the orientation, what it rests on, why it is none, and remarks."""
    by_label, direction = _by_label(members)
    times = [run.written for run in members]
    is_timed = len(members) == 4 and None not in times and len(set(times)) == 4
    if direction is None:
        ran = " ".join(by_label[position].label.arm for position in sorted(by_label))
        return by_label, "ABBA", "file names", f"its labels put the arms in the order {ran}", ()
    if not is_timed:
        return by_label, direction, "file names", None, ()
    in_time = sorted(members, key=lambda run: run.written or datetime.min.replace(tzinfo=UTC))
    ran = " ".join(f"{run.label.arm}{run.label.run or ''}" for run in in_time)
    actual = next((way for way in _ORIENTATIONS if arms_in_order(way) == tuple(run.label.arm for run in in_time)), None)
    if actual is None:
        problem = f"by the times in its dumps it ran in the order {ran}"
        return by_label, direction, "dump times", problem, ()
    has_positions = members[0].label.position is not None
    expected = [by_label[position] for position in sorted(by_label)]
    if has_positions and in_time != expected:
        problem = "the times in its dumps contradict the positions in its labels"
        return by_label, direction, "dump times", problem, ()
    is_renumbered = not has_positions and ran != " ".join(labels_in_order(actual))
    notes = (f"its slots are numbered by the times in its dumps; by labels they ran {ran}",) if is_renumbered else ()
    return dict(enumerate(in_time, start=1)), actual, "dump times", None, notes


def _by_label(members: Sequence[ImportedRun]) -> tuple[dict[int, ImportedRun], Orientation | None]:
    """Runs by position as the labels say it: A1 B1 B2 A2, unless positions are given. None: neither orientation."""
    if members[0].label.position is None:
        places = {("A", 1): 1, ("B", 1): 2, ("B", 2): 3, ("A", 2): 4}
        return {places[run.label.arm, run.label.run or 1]: run for run in members}, "ABBA"
    by_position = {run.label.position or 1: run for run in members}
    fitting = [
        way
        for way in _ORIENTATIONS
        if all(arms_in_order(way)[position - 1] == run.label.arm for position, run in by_position.items())
    ]
    return by_position, fitting[0] if fitting else None
