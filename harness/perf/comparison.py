"""Two or more perf dumps side by side, as typed rows that every writer (text, sglang's report, JSON) shows.

The first dump is the baseline. A pair of runs is described, never judged: a verdict needs A-B-B-A blocks
(:mod:`fuseproof.harness.perf.abba`). Times are milliseconds of the whole run, summed over its requests.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fuseproof.harness.perf.batches import cold_first_batch
from fuseproof.harness.perf.busy_machine import busy_text
from fuseproof.harness.perf.checked_calls import checked_calls
from fuseproof.harness.perf.dump import PerfDump
from fuseproof.harness.perf.enhanced_prompts import same_texts_text
from fuseproof.harness.perf.memory import MemoryTable, memory_table
from fuseproof.harness.perf.outputs import OutputsComparison, compare_outputs
from fuseproof.harness.perf.profiled_runs import profiled_run
from fuseproof.harness.perf.saving import saving_inside_text, saving_stages_ms
from fuseproof.harness.perf.steps import StepStatistics, steps_side_by_side
from fuseproof.harness.perf.work import WorkCheck, check_equal_work, doubtful_speedup

SCHEMA = "fuseproof.compare-perf/1"
OUTSIDE_TOTAL = (
    "Scheduler.return_result.spill_arrays",
    "Scheduler.return_result.spill_cuda",
    "SchedulerClient.materialize_file_refs",
    "GPUWorker.frame_materialize_for_return",
    "PipelineExecutor.sequential_wait",
)
"""Entries that sglang records beside its stages but outside ``total_duration_ms``."""

COLD_REQUEST_SHARE = 0.10

Marker = Literal["", "added", "removed", "absent"]


@dataclass(frozen=True)
class TimeRow:
    """One time in every dump, in ms; None where a dump does not hold it."""

    name: str
    baseline_ms: float | None
    candidates_ms: tuple[float | None, ...]
    note: str = ""

    def change(self, index: int) -> float | None:
        """Candidate ``index``'s time relative to the baseline: -0.02 is 2 % less time. None without both."""
        candidate_ms = self.candidates_ms[index]
        if candidate_ms is None or not self.baseline_ms:
            return None
        return candidate_ms / self.baseline_ms - 1

    def marker(self, index: int) -> Marker:
        """Whether the candidate has what the baseline lacks ("added"), or the reverse ("removed")."""
        candidate_ms = self.candidates_ms[index]
        if self.baseline_ms is None:
            return "absent" if candidate_ms is None else "added"
        return "removed" if candidate_ms is None else ""

    def doubt(self, index: int) -> str | None:
        """Why a candidate's speed-up is not to be believed from this time alone; None without such a doubt."""
        candidate_ms = self.candidates_ms[index]
        return doubtful_speedup(self.baseline_ms, candidate_ms) if self.baseline_ms and candidate_ms else None

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values, with the changes and markers worked out."""
        indices = range(len(self.candidates_ms))
        return asdict(self) | {
            "changes": [self.change(index) for index in indices],
            "markers": [self.marker(index) for index in indices],
        }


@dataclass(frozen=True)
class RequestStatistics:
    """The requests of one run: the first apart from the steady ones, since it may hold compilation."""

    count: int
    first_ms: float
    steady_median_ms: float
    steady_minimum_ms: float

    @property
    def first_is_cold(self) -> bool:
        """Whether the first request is slower than the steady ones by more than a tenth."""
        return self.first_ms > (1 + COLD_REQUEST_SHARE) * self.steady_median_ms


@dataclass(frozen=True)
class PerfComparison:
    """Everything that can be said about the dumps without judging them."""

    labels: tuple[str, ...]
    dumps: tuple[PerfDump, ...]
    headline: TimeRow
    """The time to quote: worker E2E, or the steady request where a run's first one was cold."""
    times: tuple[TimeRow, ...]
    throughput_per_s: tuple[float, ...]
    requests: tuple[RequestStatistics | None, ...]
    steps: tuple[StepStatistics | None, ...]
    stages: tuple[TimeRow, ...]
    outside_stages: tuple[TimeRow, ...]
    unattributed: TimeRow
    outputs: tuple[OutputsComparison, ...]
    memory: MemoryTable
    work: tuple[WorkCheck, ...]
    warnings: tuple[str, ...]
    explanations: tuple[str, ...] = ()
    """What unequal work comes down to, where that is known."""
    busy: tuple[str, ...] = ()
    """Runs that recorded that others used the machine."""

    @property
    def is_equal_work(self) -> bool:
        """Whether nothing recorded forbids the comparison."""
        return not any(check.blocking for check in self.work)

    def to_json(self, *, is_forced: bool = False) -> dict[str, Any]:
        """Strict JSON values; no time of an unequal comparison is in them unless ``is_forced``."""
        if not self.is_equal_work and not is_forced:
            work = [check.to_json() for check in self.work]
            return {
                "schema": SCHEMA,
                "labels": list(self.labels),
                "is_equal_work": False,
                "work": work,
                "explanations": list(self.explanations),
                "outputs": [entry.to_json() for entry in self.outputs],
            }
        return {
            "schema": SCHEMA,
            "labels": list(self.labels),
            "commits": [dump.commit_hash for dump in self.dumps],
            "is_equal_work": self.is_equal_work,
            "headline": self.headline.to_json(),
            "doubts": [self.headline.doubt(index) for index in range(len(self.labels) - 1)],
            "times": [row.to_json() for row in self.times],
            "throughput_per_s": list(self.throughput_per_s),
            "requests": [entry and asdict(entry) for entry in self.requests],
            "steps": [entry and asdict(entry) for entry in self.steps],
            "stages": [row.to_json() for row in self.stages],
            "outside_stages": [row.to_json() for row in self.outside_stages],
            "unattributed": self.unattributed.to_json(),
            "outputs": [entry.to_json() for entry in self.outputs],
            "memory": self.memory.to_json(),
            "work": [check.to_json() for check in self.work],
            "explanations": list(self.explanations),
            "busy": list(self.busy),
            "warnings": list(self.warnings),
        }


def compare_dumps(dumps: Sequence[PerfDump]) -> PerfComparison:
    """Compare two dumps or more; the first is the baseline."""
    labels = distinct_labels([dump.path for dump in dumps])
    requests = tuple(request_statistics(dump) for dump in dumps)
    steps = steps_side_by_side(dumps)
    times = _times(dumps, requests)
    names = merged_order([list(dump.run_stages) for dump in dumps])
    stages = [_row(name, [dump.run_stages.get(name) for dump in dumps]) for name in names]
    others = list(zip(dumps[1:], labels[1:], strict=True))
    is_cold = any(entry is not None and entry.first_is_cold for entry in requests)
    return PerfComparison(
        labels=labels,
        dumps=tuple(dumps),
        headline=next((row for row in times if is_cold and row.name.startswith("Steady request")), times[0]),
        times=times,
        throughput_per_s=tuple(1000 * dump.request_count / dump.worker_ms for dump in dumps),
        requests=requests,
        steps=steps,
        stages=tuple(row for row in stages if row.name not in OUTSIDE_TOTAL),
        outside_stages=tuple(row for row in stages if row.name in OUTSIDE_TOTAL),
        unattributed=_unattributed(dumps),
        outputs=tuple(compare_outputs(dumps[0], dump, label) for dump, label in others),
        memory=memory_table(dumps),
        work=tuple(_work_check(dumps[0], dump, label) for dump, label in others),
        warnings=tuple(_warnings(dumps, labels, requests, steps)),
        explanations=tuple(dict.fromkeys(text for dump, _ in others if (text := same_texts_text(dumps[0], dump)))),
        busy=tuple(f"{label}: {text}" for dump, label in zip(dumps, labels, strict=True) if (text := busy_text(dump))),
    )


def _work_check(baseline: PerfDump, other: PerfDump, label: str) -> WorkCheck:
    """Equal work, and times that are times: a run that computed every call twice, or was profiled, has none."""
    check = check_equal_work(baseline, other, label)
    looked_at = (why(dump) for dump in (baseline, other) for why in (checked_calls, profiled_run))
    found = [difference for difference in looked_at if difference is not None]
    return replace(check, differences=(*found, *check.differences)) if found else check


def request_statistics(dump: PerfDump) -> RequestStatistics | None:
    """First and steady requests of a run; None when it served one request."""
    times_ms = dump.request_worker_ms
    if len(times_ms) < 2:
        return None
    return RequestStatistics(
        count=len(times_ms),
        first_ms=times_ms[0],
        steady_median_ms=statistics.median(times_ms[1:]),
        steady_minimum_ms=min(times_ms[1:]),
    )


def distinct_labels(paths: Sequence[Path]) -> tuple[str, ...]:
    """File names, with as many parent folders as tell equal names apart; a path given again is numbered."""
    labels = {path: path.name or str(path) for path in paths}
    for depth in range(2, max(len(path.parts) for path in paths) + 1):
        names = list(labels.values())
        clashing = {name for name in names if names.count(name) > 1}
        labels = {path: "/".join(path.parts[-depth:]) if label in clashing else label for path, label in labels.items()}
    return tuple(
        labels[path] if path not in paths[:index] else f"{labels[path]} ({paths[: index + 1].count(path)})"
        for index, path in enumerate(paths)
    )


def merged_order(orders: Sequence[Sequence[str]]) -> list[str]:
    """One execution order for all: the first list, with each later list's new names after their predecessor there."""
    merged: list[str] = []
    for order in orders:
        position = 0
        for name in order:
            if name not in merged:
                merged.insert(position, name)
            position = merged.index(name) + 1
    return merged


def _row(name: str, values: Sequence[float | None], note: str = "") -> TimeRow:
    return TimeRow(name, values[0], tuple(values[1:]), note)


def _times(dumps: Sequence[PerfDump], requests: Sequence[RequestStatistics | None]) -> tuple[TimeRow, ...]:
    rows = [
        _row("Worker E2E", [dump.worker_ms for dump in dumps]),
        _row("Denoise", [dump.run_denoise_ms for dump in dumps], _denoise_note(dumps)),
        _row("Save", [dump.timers.get("save_ms") for dump in dumps]),
        _row("Saving inside the worker", [_saving_inside_ms(dump) for dump in dumps], "by the names of stages"),
        _row("Client E2E", [dump.client_ms for dump in dumps], "saving included"),
        _row("First request", [entry.first_ms if entry else None for entry in requests]),
        _row("Steady request (median)", [entry.steady_median_ms if entry else None for entry in requests]),
        _row("Steady request (minimum)", [entry.steady_minimum_ms if entry else None for entry in requests]),
        _row("Load", [dump.timers.get("load_ms") for dump in dumps], "outside every total"),
        _row("Warm-up", [dump.timers.get("warmup_ms") for dump in dumps], "outside every total"),
        _row("Compile", [dump.timers.get("compile_ms") for dump in dumps], "outside every total"),
    ]
    kept = ("Worker E2E", "Denoise")
    return tuple(row for row in rows if row.name in kept or any((row.baseline_ms, *row.candidates_ms)))


def _saving_inside_ms(dump: PerfDump) -> float | None:
    return math.fsum(saving_stages_ms(dump).values()) or None


def _denoise_note(dumps: Sequence[PerfDump]) -> str:
    has_step_sums = any(dump.denoise_source == "steps" for dump in dumps)
    return "summed from the steps where no stage is named for it" if has_step_sums else ""


def _unattributed(dumps: Sequence[PerfDump]) -> TimeRow:
    if all(dump.client_ms is not None for dump in dumps):
        return _row("unattributed", [_remainder(dump, dump.client_ms) for dump in dumps], "client E2E - stages - save")
    return _row("unattributed", [_remainder(dump, None) for dump in dumps], "worker E2E - stages")


def _remainder(dump: PerfDump, client_ms: float | None) -> float:
    stages_ms = math.fsum(duration_ms for name, duration_ms in dump.run_stages.items() if name not in OUTSIDE_TOTAL)
    if client_ms is None:
        return dump.worker_ms - stages_ms
    return client_ms - stages_ms - dump.timers.get("save_ms", 0.0)


def _warnings(
    dumps: Sequence[PerfDump],
    labels: Sequence[str],
    requests: Sequence[RequestStatistics | None],
    steps: Sequence[StepStatistics | None],
) -> list[str]:
    warnings = []
    for dump, label, request, step in zip(dumps, labels, requests, steps, strict=True):
        if step is not None and step.unsteady_steps:
            flagged = ", ".join(f"{index} ({dump.denoise_steps_ms[index]:.1f} ms)" for index in step.unsteady_steps)
            warnings.append(
                f"{label}: denoise step {flagged} is far from the steady {step.median_ms:.1f} ms (launch times without "
                "synchronisation, or a cold start); the step statistics leave it out, the stage's time does not."
            )
        if request is not None and request.first_is_cold:
            warnings.append(
                f"{label}: the first of {request.count} requests took {request.first_ms:.1f} ms, the steady ones "
                f"{request.steady_median_ms:.1f} ms (median): quote the steady time."
            )
        found = (cold_first_batch({**dump.raw, **dump.config}), saving_inside_text(saving_stages_ms(dump)))
        warnings += [f"{label}: {text}." for text in found if text is not None]
        warnings += [f"{label} recorded: {warning}" for warning in dump.warnings]
    if {dump.denoise_source for dump in dumps} >= {"stages", "steps"}:
        warnings.append("Denoise is a stage's time in one dump and a sum of step times in another: not the same timer.")
    duplicates = [label for label, dump in zip(labels[1:], dumps[1:], strict=True) if dump.raw == dumps[0].raw]
    warnings += [f"{label} holds the same run as the baseline: every difference is 0." for label in duplicates]
    return warnings
