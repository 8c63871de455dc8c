"""Perf dumps read as A-B-B-A blocks: who ran where, whether it was the same work, the verdict of each timer, memory.

Files come in **slot order**: A1 B1 B2 A2 for an ABBA block, B1 A1 A2 B2 for a mirrored (BAAB) one. The arms are what
the order says they are, so what the dumps know about themselves (commit, flags, request) is used to catch files in the
wrong order, an arm that is two programs, and one run that poses as two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuseproof.harness.perf import batches, busy_machine, checked_calls, graphs, profiled_runs, saving
from fuseproof.harness.perf.blocks import METRICS, AbbaBlock, seconds_of
from fuseproof.harness.perf.dump import PerfDump
from fuseproof.harness.perf.memory import MemoryClaim, memory_claim, request_peaks_gib, same_arm_spread_gib
from fuseproof.harness.perf.outputs import OutputsComparison, compare_outputs
from fuseproof.harness.perf.slot_order import slot_order_obstacles
from fuseproof.harness.perf.work import SPEED_FIELD, WorkCheck, check_equal_work, excessive_speedup
from fuseproof.harness.statistics.comparison import Block, Thresholds
from fuseproof.harness.statistics.next_steps import verdict_measured_elsewhere
from fuseproof.harness.statistics.verdict import Reason, Verdict, Word, decide, invalid, post_worker_tails

SCHEMA = "fuseproof.compare-perf-abba/1"
PRIMARY = "worker"
"""Its verdict is the verdict; the other timers are shown beside it."""


@dataclass(frozen=True)
class AbbaComparison:
    """The verdict of every timer that all dumps hold; for unequal work a single INVALID verdict and no numbers."""

    blocks: tuple[AbbaBlock, ...]
    verdicts: dict[str, Verdict]
    warnings: tuple[Reason, ...]
    work: tuple[WorkCheck, ...]
    arms_differ: tuple[str, ...]
    """What the dumps say distinguishes candidate from baseline: commits, flags, versions."""
    outputs: tuple[OutputsComparison, ...]
    """Every other run against the first baseline run."""
    memory: MemoryClaim | None

    @property
    def outputs_reference(self) -> str:
        """The file of the run that the others' outputs are compared with."""
        return self.blocks[0].of_arm("A")[0][0]

    @property
    def verdict(self) -> Verdict:
        """The verdict of the primary timer."""
        return self.verdicts[PRIMARY]

    @property
    def exit_code(self) -> int:
        """6 for unequal work, 3 when the candidate is slower, 0 otherwise (SAME and INCONCLUSIVE too)."""
        return {Word.INVALID: 6, Word.SLOWER: 3}.get(self.verdict.word, 0)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "schema": SCHEMA,
            "primary": PRIMARY,
            "word": self.verdict.word.value,
            "blocks": [_block_json(block) for block in self.blocks],
            "verdicts": {name: verdict.to_json() for name, verdict in self.verdicts.items()},
            "outputs": [entry.to_json() for entry in self.outputs],
            "memory": None if self.memory is None else asdict(self.memory),
            "arms_differ": list(self.arms_differ),
            "warnings": [asdict(warning) for warning in self.warnings],
            "work": [check.to_json() for check in self.work],
        }


def compare_blocks(
    blocks: Sequence[AbbaBlock], thresholds: Thresholds | None = None, *, is_forced: bool = False
) -> AbbaComparison:
    """Judge the blocks on every timer that all their dumps hold.

    Unequal work is INVALID; with ``is_forced`` its numbers are shown and no direction is concluded.
    """
    checks = _work_checks(blocks)
    obstacles = (
        *_unequal_work(checks),
        *_watched_calls(blocks),
        *_missing_graphs(blocks),
        *slot_order_obstacles(blocks),
    )
    warnings, arms_differ = _warnings(blocks, checks), _arms_differ(blocks)
    if obstacles and not is_forced:
        verdicts = {PRIMARY: invalid(*obstacles)}
        outputs = _outputs(blocks)
        return AbbaComparison(tuple(blocks), verdicts, warnings, checks, arms_differ, outputs=outputs, memory=None)
    times = {name: timed for name in METRICS if (timed := _timed_blocks(blocks, name))}
    tails = post_worker_tails(times["worker"], times["client"], 0.0) if "client" in times else ()
    return AbbaComparison(
        blocks=tuple(blocks),
        verdicts={
            name: verdict_measured_elsewhere(
                decide(timed, thresholds, caps=obstacles, warnings=tails if name == "client" else ())
            )
            for name, timed in times.items()
        },
        warnings=warnings,
        work=checks,
        arms_differ=arms_differ,
        outputs=_outputs(blocks),
        memory=_memory(blocks),
    )


def _timed_blocks(blocks: Sequence[AbbaBlock], metric: str) -> list[Block] | None:
    timed = []
    for block in blocks:
        first, second, third, fourth = (seconds_of(dump, metric) for dump in block.dumps)
        if not (first and second and third and fourth):
            return None
        timed.append(Block(block.orientation, (first, second, third, fourth), block.name))
    return timed


def _arm(blocks: Sequence[AbbaBlock], arm: str) -> list[PerfDump]:
    return [dump for block in blocks for _, dump in block.of_arm(arm)]


def _outputs(blocks: Sequence[AbbaBlock]) -> tuple[OutputsComparison, ...]:
    reference = _arm(blocks, "A")[0]
    runs = [run for block in blocks for run in zip(block.labels, block.dumps, strict=True)]
    return tuple(compare_outputs(reference, dump, label) for label, dump in runs if dump is not reference)


def _memory(blocks: Sequence[AbbaBlock]) -> MemoryClaim:
    """Only runs of one commit show how far an arm's own runs lie apart: two candidates may need different memory."""
    baseline, candidate = _arm(blocks, "A"), _arm(blocks, "B")
    same_runs: dict[tuple[str, str], list[PerfDump]] = {}
    for arm, dumps in (("A", baseline), ("B", candidate)):
        for dump in dumps:
            same_runs.setdefault((arm, dump.short_commit), []).append(dump)
    spread_gib = same_arm_spread_gib(list(same_runs.values()))
    return memory_claim(request_peaks_gib(baseline), request_peaks_gib(candidate), spread_gib)


def _work_checks(blocks: Sequence[AbbaBlock]) -> tuple[WorkCheck, ...]:
    reference = _arm(blocks, "A")[0]
    checks = [
        check_equal_work(reference, dump, label, judges_speed=False)
        for block in blocks
        for label, dump in zip(block.labels, block.dumps, strict=True)
        if dump is not reference
    ]
    means_ms = [math.fsum(dump.worker_ms for dump in _arm(blocks, arm)) / (2 * len(blocks)) for arm in "AB"]
    doubt = excessive_speedup(*means_ms)
    return (*checks, WorkCheck("the candidate arm", tuple(doubt), ())) if doubt else tuple(checks)


def _unequal_work(checks: Sequence[WorkCheck]) -> tuple[Reason, ...]:
    details = [f"{difference} ({check.label})" for check in checks for difference in check.blocking]
    if not details:
        return ()
    detail = "; ".join(details[:4]) + (f"; and {len(details) - 4} more" if len(details) > 4 else "")
    return (Reason("UNEQUAL_WORK", detail, "Measure both arms with the same request and the same warm-up."),)


def _watched_calls(blocks: Sequence[AbbaBlock]) -> Iterator[Reason]:
    for block in blocks:
        for label, dump in zip(block.labels, block.dumps, strict=True):
            flag = checked_calls.checking_flag(dump)
            if flag is not None:
                detail = f"{label}: {checked_calls.one_checked_text(flag)}"
                yield Reason(checked_calls.CODE, detail, checked_calls.NEXT_STEP)
            if profiled_runs.is_profiled(dump):
                yield Reason(profiled_runs.CODE, f"{label}: {profiled_runs.ONE_TEXT}", profiled_runs.NEXT_STEP)


def _missing_graphs(blocks: Sequence[AbbaBlock]) -> Iterator[Reason]:
    for block in blocks:
        for label, dump in zip(block.labels, block.dumps, strict=True):
            missing = graphs.graph_shortfall(dump.config, dump.graphs, dump.requests)
            if missing:
                yield Reason("MISSING_GRAPH", f"{label} asked for CUDA graphs: {missing}", graphs.NEXT_STEP)


def _warnings(blocks: Sequence[AbbaBlock], checks: Sequence[WorkCheck]) -> tuple[Reason, ...]:
    found = [_commits_differ(blocks, arm) for arm in "AB"]
    found += [_same_program(blocks), _outputs_differ(blocks)]
    doubts = [difference for check in checks for difference in check.notes if difference.field == SPEED_FIELD]
    found += [Reason("DOUBTFUL_SPEEDUP", str(doubt), "Check that the candidate did all the work.") for doubt in doubts]
    found += _measured_otherwise(blocks)
    busy = [
        f"{label}: {text}"
        for block in blocks
        for label, dump in zip(block.labels, block.dumps, strict=True)
        if (text := busy_machine.busy_text(dump)) is not None
    ]
    found += [Reason("BUSY_MACHINE", "; ".join(busy[:4]), busy_machine.NEXT_STEP)] if busy else []
    recorded = dict.fromkeys(text for block in blocks for dump in block.dumps for text in dump.warnings)
    found += [Reason("RECORDED_BY_A_RUN", text, "Read that run's log.") for text in recorded]
    return tuple(warning for warning in found if warning is not None)


def _measured_otherwise(blocks: Sequence[AbbaBlock]) -> Iterator[Reason]:
    """What the times contain besides the work, each said once: a cold first batch, saving."""
    dumps = [dump for block in blocks for dump in block.dumps]
    cold = dict.fromkeys(batches.cold_first_batch({**dump.raw, **dump.config}) for dump in dumps)
    yield from (Reason("COLD_BATCH", text, batches.NEXT_STEP) for text in cold if text is not None)
    names = dict.fromkeys(name for dump in dumps for name in saving.saving_stages_ms(dump))
    text = saving.saving_inside_text(names)
    if text is not None:
        yield Reason(saving.CODE, text, saving.NEXT_STEP)


def _commits_differ(blocks: Sequence[AbbaBlock], arm: str) -> Reason | None:
    blocks_of: dict[str, list[str]] = {}
    for number, block in enumerate(blocks, start=1):
        for _, dump in block.of_arm(arm)[:1]:
            blocks_of.setdefault(dump.short_commit, []).append(str(number))
    if len(blocks_of) < 2:
        return None
    role = {"A": "baseline", "B": "candidate"}[arm]
    if all(len(numbers) == 1 for numbers in blocks_of.values()):
        commits = ", ".join(blocks_of)
    else:
        commits = ", ".join(f"{commit} (block {_listed(numbers)})" for commit, numbers in blocks_of.items())
    every_block = _listed([str(number) for number in range(1, len(blocks) + 1)])
    return Reason(
        f"{role.upper()}S_DIFFER",
        f"blocks {every_block} measured different {role}s: {commits}",
        f"Quote the blocks of the final {role} alone, or measure again with one {role}.",
    )


def _same_program(blocks: Sequence[AbbaBlock]) -> Reason | None:
    is_known = all(dump.commit_hash for arm in "AB" for dump in _arm(blocks, arm))
    if not is_known or _arms_differ(blocks):
        return None
    detail = f"both arms report commit {_arm(blocks, 'A')[0].short_commit} and nothing else that differs"
    return Reason("SAME_PROGRAM", detail, "This is an A/A run unless the arms differ in something unrecorded.")


def _outputs_differ(blocks: Sequence[AbbaBlock]) -> Reason | None:
    reference = _arm(blocks, "A")[0]
    differing = [
        label
        for block in blocks
        for label, dump in zip(block.labels, block.dumps, strict=True)
        if any(difference.field == "outputs" for difference in check_equal_work(reference, dump).notes)
    ]
    if not differing:
        return None
    detail = f"the outputs of {', '.join(differing)} are not those of {blocks[0].of_arm('A')[0][0]}"
    return Reason("OUTPUTS_DIFFER", detail, "Compare them with `fuseproof compare-media`.")


def _arms_differ(blocks: Sequence[AbbaBlock]) -> tuple[str, ...]:
    """The notes between the arms' first runs, over all blocks, each said once."""
    notes: dict[str, None] = {}
    for block in blocks:
        (_, baseline), (_, candidate) = block.of_arm("A")[0], block.of_arm("B")[0]
        found = check_equal_work(baseline, candidate, judges_speed=False).notes
        notes |= {str(note): None for note in found if note.field != "outputs"}
    return tuple(notes)


def _block_json(block: AbbaBlock) -> dict[str, Any]:
    slots = [
        {
            "slot": slot,
            "file": label,
            "commit": dump.commit_hash,
            "seconds": {metric: seconds_of(dump, metric) for metric in METRICS},
            "request_peaks_gib": request_peaks_gib([dump]),
        }
        for slot, label, dump in zip(block.slot_labels, block.labels, block.dumps, strict=True)
    ]
    return {"name": block.name, "orientation": block.orientation, "slots": slots}


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
