"""What one loaded process can say of two arms: numbers and hashes by the rules of a campaign, and never a verdict.

Load, allocator and caches are shared by the arms here, and the runs are not independent of each other. So there is no
word for the difference, whatever it is; unequal work and a broken contract are said all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseproof.harness.analysis.arm_warnings import arm_warnings
from fuseproof.harness.analysis.checked_calls import CODE as EVERY_CALL_CHECKED
from fuseproof.harness.analysis.checked_calls import checked_runs
from fuseproof.harness.analysis.equal_work import EqualWork, broken_promises, check_cell_work
from fuseproof.harness.analysis.fastpaths import FastpathProof, check_fastpaths
from fuseproof.harness.analysis.memory import MemoryCheck, check_memory
from fuseproof.harness.analysis.metrics import MetricResult, judge_metrics
from fuseproof.harness.analysis.output_check import OutputCheck, check_outputs
from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, CellRuns, Run
from fuseproof.harness.analysis.treatment import declared_differences
from fuseproof.harness.campaign.records import SlotMemory
from fuseproof.harness.number_format import count, number
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.schedules.plan import Plan

EXIT_INVALID, EXIT_CONTRACT = 6, 4
TIMERS = ("worker", "denoise", "client")
"""What is timed alike in every slot; loading is shared, so it has no row."""
NO_EVIDENCE = (
    "One process cannot show what loading, the allocator or caches cost or save, and its runs are not independent of "
    "each other: this is exploratory, and no evidence."
)
HOST_MEMORY = "Memory: not known; arms that share a process share its host memory."


@dataclass(frozen=True)
class KeptOut:
    """What one arm did outside of its times. ``*_ms`` are milliseconds; ``jit_ms`` is part of ``first_sight_ms``."""

    arm: str
    slots: int
    warmup_ms: float
    first_sight_ms: float
    jit_ms: float

    @property
    def sentence(self) -> str:
        """``candidate 812 ms in 5 warm-ups (first sights 310 ms, of which JIT 210 ms)``."""
        sights = ""
        if self.first_sight_ms:
            sights = f" (first sights {number(self.first_sight_ms, 0)} ms, of which JIT {number(self.jit_ms, 0)} ms)"
        warmups = count(self.slots, "warm-up")
        return f"{ARM_WORDS.get(self.arm, self.arm)} {number(self.warmup_ms, 0)} ms in {warmups}{sights}"


@dataclass(frozen=True)
class QuickCell:
    """One cell. ``metrics`` is empty where the work was unequal: then there is no ratio, and ``objections`` say why."""

    runs: CellRuns
    metrics: tuple[MetricResult, ...]
    equal_work: EqualWork
    objections: tuple[Reason, ...]
    outputs: OutputCheck
    memory: MemoryCheck | None
    fastpaths: FastpathProof
    kept_out: tuple[KeptOut, ...]
    treatment: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.runs.cell.name

    def exit_codes(self) -> set[int]:
        """6 for a measurement that proves nothing, 4 for outputs that break their contract.

        Where runs that were made to look at bits found wrong ones, 4: that their times prove nothing was known.
        """
        if self.outputs.keeps_contract:
            return {EXIT_INVALID} if self.objections else set()
        only_bits = all(reason.code == EVERY_CALL_CHECKED for reason in self.objections)
        return {EXIT_CONTRACT} if only_bits else {EXIT_CONTRACT, EXIT_INVALID}

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values: numbers, and no word for them."""
        return {
            "name": self.name,
            "blocks": {
                "planned": self.runs.planned_blocks,
                "run": [{"number": block.number, "orientation": block.orientation} for block in self.runs.blocks],
            },
            "metrics": [_metric_json(metric) for metric in self.metrics],
            "runs": [_run_json(run) for run in self.runs.runs],
            "outputs": self.outputs.to_json(),
            "memory": None if self.memory is None else self.memory.to_json(),
            "equal_work": self.equal_work.to_json(),
            "objections": [dataclasses.asdict(reason) for reason in self.objections],
            "fastpaths": self.fastpaths.to_json(),
            "kept_out": [dataclasses.asdict(entry) for entry in self.kept_out],
            "treatment": list(self.treatment),
            "warnings": list(self.warnings),
        }


def examine(
    cell: CellRuns, plan: Plan, directory: Path, environment: Mapping[str, Any], warmups: Sequence[Run]
) -> QuickCell:
    """Look at a cell's whole blocks. ``directory`` holds the slots' folders; ``warmups`` are the discarded runs."""
    cell = dataclasses.replace(
        cell,
        blocks=tuple(
            dataclasses.replace(block, runs=tuple(map(_without_host_memory, block.runs))) for block in cell.blocks
        ),
    )
    equal_work, fastpaths, outputs = check_cell_work(cell, plan), check_fastpaths(cell), check_outputs(cell, directory)
    reason = equal_work.reason()
    objections = (*((reason,) if reason is not None else ()), *broken_promises(cell), *checked_runs(cell))
    judged = () if objections or not cell.blocks else judge_metrics(cell, plan)
    metrics = tuple(metric for metric in judged if metric.name in TIMERS)
    memory = check_memory(cell, environment) if metrics else None
    return QuickCell(
        runs=cell,
        metrics=metrics,
        equal_work=equal_work,
        objections=objections,
        outputs=outputs,
        memory=memory if memory is not None and memory.rows else None,
        fastpaths=fastpaths,
        kept_out=tuple(_kept_out(arm, [*warmups, *cell.runs]) for arm in ARMS),
        treatment=tuple(declared_differences(plan.arms.baseline, plan.arms.candidate)),
        warnings=tuple(_warnings(cell, metrics, fastpaths, outputs)),
    )


def _without_host_memory(run: Run) -> Run:
    """Peaks of the process and of its one load belong to both arms; the device's allocator counts a request alone."""
    known = run.record.memory
    own = SlotMemory(peak_allocated_mib=known.peak_allocated_mib, peak_reserved_mib=known.peak_reserved_mib)
    return Run(run.record.with_facts(memory=own), run.dump)


def _kept_out(arm: str, runs: Sequence[Run]) -> KeptOut:
    own = [run for run in runs if run.record.arm == arm]
    sites = [site for run in own for site in ((run.record.fastpaths or {}).get("sites") or {}).values()]
    return KeptOut(
        arm=arm,
        slots=len(own),
        warmup_ms=1e3 * sum(run.record.times.warmup_s or 0.0 for run in own),
        first_sight_ms=sum(float(site.get("first_sight_ms") or 0.0) for site in sites),
        jit_ms=sum(float(site.get("jit_ms") or 0.0) for site in sites),
    )


def _warnings(
    cell: CellRuns, metrics: Sequence[MetricResult], fastpaths: FastpathProof, outputs: OutputCheck
) -> list[str]:
    """What the statistics, the fast paths and the runs themselves say beside their numbers; each once."""
    found = [f"{warning.code}: {warning.detail}" for warning in (*fastpaths.warnings, *outputs.warnings)]
    found += [f"{warning.code}: {warning.detail}" for warning in arm_warnings(cell)]
    for metric in metrics:
        if metric.verdict is not None and metric.is_primary:
            found += [f"{warning.code}: {warning.detail}" for warning in metric.verdict.warnings]
    return list(dict.fromkeys(found))


def _metric_json(metric: MetricResult) -> dict[str, Any]:
    comparison = None if metric.verdict is None else metric.verdict.comparison
    return {
        "name": metric.name,
        "is_primary": metric.is_primary,
        "note": metric.note,
        "comparison": None if comparison is None else comparison.to_json(),
    }


def _run_json(run: Run) -> dict[str, Any]:
    record = run.record
    return {
        "id": record.id,
        "arm": record.arm,
        "label": record.label,
        "seconds": {name: getattr(record.times, f"{name}_s") for name in TIMERS},
        "raw_sha256": [output.raw_sha256 for output in record.outputs],
        "peak_allocated_mib": record.memory.peak_allocated_mib,
        "peak_reserved_mib": record.memory.peak_reserved_mib,
        "fused_calls": record.fused_calls,
    }
