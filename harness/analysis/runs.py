"""From the slots on disk to the runs a cell is judged by: complete blocks, and what became of all the others.

A block counts when all timed slots of one attempt are done; the latest such attempt stands for it. Everything else
stays visible: lost blocks with their reason, superseded and interrupted slots, discarded warm-up slots.

With three or more arms every candidate is compared with the baseline alone: :meth:`CellRuns.against` is the cell as
that comparison sees it, with the baseline as A and the candidate as B whatever its letter; ``everything`` is the cell
with all its arms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fuseproof.harness.analysis.contradictions import CONTRADICTION, COPIED_DUMP, DOUBTED_CODES, contradiction, doubted
from fuseproof.harness.analysis.soundness import refuse_unsound_dump
from fuseproof.harness.campaign.folder import PERF_FILE, BlockSlots, Campaign
from fuseproof.harness.campaign.left_out import left_out_lines
from fuseproof.harness.campaign.origin import SLOT_ORDER
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.perf.dump import PerfDump, read_perf_dump
from fuseproof.schedules.order import LETTERS, ArmLetter, Orientation, arm_word
from fuseproof.schedules.plan import Cell

ARMS: tuple[ArmLetter, ArmLetter] = ("A", "B")
"""The two sides of a comparison: the baseline, and the candidate."""
ARM_WORDS: dict[str, str] = {letter: arm_word(letter) for letter in LETTERS}
BASELINE = ARMS[0]
VOIDING_CODES = (
    frozenset({"FALLBACK", "INVALID_RUN", "MISSING_GRAPH", "GRAPHS", "UNEQUAL_WORK", "HW_SLOWDOWN", SLOT_ORDER})
    | DOUBTED_CODES
)
"""Reasons that void a measurement (exit 6); every other reason of an invalid slot is a failure of its arm (exit 1)."""


@dataclass(frozen=True)
class Run:
    """One timed slot that counts, with its perf dump (None when the folder has none)."""

    record: SlotRecord
    dump: PerfDump | None


@dataclass(frozen=True)
class CountedBlock:
    """The runs of one attempt, two an arm, in the order they ran. ``number`` counts from 1.

    ``orientation`` names all arms of the block, also where ``runs`` are only those of two.
    """

    number: int
    attempt: int
    orientation: Orientation
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class LostBlock:
    """A planned block without a complete attempt; ``slot`` is the one to blame, None when it never started."""

    number: int
    slot: SlotRecord | None

    @property
    def has_failed(self) -> bool:
        """An arm failed in it; otherwise it was interrupted or has not run yet."""
        return self.slot is not None and self.slot.state == "invalid"

    @property
    def is_void(self) -> bool:
        """The arm did not fail: what it measured may not be used."""
        return self.has_failed and self.slot is not None and self.slot.reason_code in VOIDING_CODES

    @property
    def is_doubted(self) -> bool:
        """What is on disk of it contradicts itself, is a copy, or is gone."""
        return self.slot is not None and self.slot.reason_code in DOUBTED_CODES


@dataclass(frozen=True)
class CellRuns:
    """Everything that was run for one cell. ``omitted`` are complete blocks left out on request."""

    cell: Cell
    planned_blocks: int
    blocks: tuple[CountedBlock, ...]
    lost: tuple[LostBlock, ...]
    omitted: tuple[int, ...]
    slots: tuple[SlotRecord, ...]
    candidate: ArmLetter = "B"
    candidate_name: str | None = None
    """Of one comparison among several: the candidate's own name."""
    whole: CellRuns | None = None
    """Of one comparison among several: the cell with all its arms."""
    added_blocks: tuple[int, ...] = ()
    """How many blocks each later session asked for beyond the plan, in order."""

    @property
    def name(self) -> str:
        """The cell's name; of one comparison among several with the candidate's: ``panda: new kernel``."""
        return self.cell.name if self.whole is None else f"{self.cell.name}: {self.candidate_name}"

    @property
    def everything(self) -> CellRuns:
        """The cell with all its arms."""
        return self if self.whole is None else self.whole

    def against(self, candidate: ArmLetter, name: str) -> CellRuns:
        """The cell as the comparison of one candidate with the baseline sees it."""
        pair = {BASELINE, candidate}
        return replace(
            self,
            blocks=tuple(
                replace(block, runs=tuple(run for run in block.runs if run.record.arm in pair)) for block in self.blocks
            ),
            slots=tuple(slot for slot in self.slots if slot.arm in pair),
            candidate=candidate,
            candidate_name=name,
            whole=self,
        )

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that count, in the order they ran."""
        return tuple(run for block in self.blocks for run in block.runs)

    @property
    def is_complete(self) -> bool:
        """Every planned block counts (or was left out on request)."""
        return not self.lost

    def of_arm(self, arm: ArmLetter) -> tuple[Run, ...]:
        """The counting runs of one arm, in the order they ran; B is the candidate that is compared."""
        letter = self.candidate if arm == ARMS[1] else arm
        return tuple(run for run in self.runs if run.record.arm == letter)

    def slot_states(self) -> Counter[str]:
        """How many slots there are of each state; discarded warm-up slots count as ``"warmup"``."""
        return Counter(
            "warmup" if slot.kind == "warmup" and slot.state == "done" else slot.state for slot in self.slots
        )


def read_cell(
    campaign: Campaign,
    cell: Cell,
    slots: Sequence[SlotRecord],
    only: Sequence[int] = (),
    copies: Mapping[str, str] | None = None,
) -> CellRuns:
    """Collect one cell's runs; ``slots`` are the cell's own records, ``only`` restricts it to these block numbers.

    A slot whose files contradict each other, or whose dump is another one's (``copies``: slot id → why), counts as
    invalid. Raises :class:`FuseproofError` naming the file when a perf dump is damaged.
    """
    size = campaign.plan.slots_per_block
    dumps = {slot.id: _dump_of(campaign, slot) for block in _complete(slots, size) for slot in block.slots}
    left_out = left_out_lines(campaign.directory)
    slots = [_examined(campaign, slot, dumps, copies or {}, left_out) for slot in slots]
    latest = {block.block: block for block in _complete(slots, size)}
    chosen = [block for number, block in latest.items() if not only or number in only]
    planned = max(campaign.blocks_wanted(cell.name), *latest, 0)
    wanted = [number for number in range(1, planned + 1) if not only or number in only]
    return CellRuns(
        cell=cell,
        planned_blocks=planned,
        blocks=tuple(_counted(block, dumps) for block in chosen),
        lost=tuple(LostBlock(number, _culprit(slots, number)) for number in wanted if number not in latest),
        omitted=tuple(number for number in latest if only and number not in only),
        slots=tuple(slots),
        added_blocks=campaign.added_blocks,
    )


def _complete(slots: Sequence[SlotRecord], slots_per_block: int) -> list[BlockSlots]:
    groups: dict[tuple[int, int], list[SlotRecord]] = {}
    for slot in slots:
        if slot.is_usable:
            groups.setdefault((slot.block, slot.attempt), []).append(slot)
    return [
        BlockSlots(
            members[0].cell,
            block,
            attempt,
            members[0].orientation,
            tuple(sorted(members, key=lambda slot: slot.position)),
        )
        for (block, attempt), members in sorted(groups.items())
        if sorted(slot.position for slot in members) == list(range(1, slots_per_block + 1))
    ]


def _counted(block: BlockSlots, dumps: Mapping[str, PerfDump | None]) -> CountedBlock:
    return CountedBlock(
        number=block.block,
        attempt=block.attempt,
        orientation=block.orientation,
        runs=tuple(Run(record, dumps[record.id]) for record in block.slots),
    )


def _dump_of(campaign: Campaign, record: SlotRecord) -> PerfDump | None:
    path = campaign.directory / record.directory / PERF_FILE
    if not path.exists():
        return None
    dump = read_perf_dump(path)
    refuse_unsound_dump(dump)
    return dump


def _examined(
    campaign: Campaign,
    record: SlotRecord,
    dumps: Mapping[str, PerfDump | None],
    copies: Mapping[str, str],
    left_out: Collection[str],
) -> SlotRecord:
    """The record, or an invalid one in its place when its folder does not bear it out; only runs that would count."""
    if record.id not in dumps:
        return record
    if record.id in copies:
        return doubted(record, COPIED_DUMP, copies[record.id])
    reason = contradiction(record, dumps[record.id], campaign.directory / record.directory, left_out)
    return record if reason is None else doubted(record, CONTRADICTION, reason)


def _culprit(slots: Sequence[SlotRecord], number: int) -> SlotRecord | None:
    """The slot that kept a block from being complete: the last invalid one of its last attempt, else the last slot."""
    own = [slot for slot in slots if slot.block == number]
    last_attempt = max((slot.attempt for slot in own), default=0)
    candidates = [slot for slot in own if slot.attempt == last_attempt]
    invalid = [slot for slot in candidates if slot.state == "invalid"]
    unfinished = [slot for slot in candidates if slot.state in ("interrupted", "running", "absent")]
    found = invalid or unfinished or candidates
    return found[-1] if found else None
