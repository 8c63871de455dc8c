"""sglang-diffusion's own comparison report, byte for byte where its tool would print something true.

Format of ``multimodal_gen/benchmarks/compare_perf.py`` in sglang 0.5.23: its headings, columns, number formats and
marks. E2E: ✅ below -2 %, ❌ above +2 %, ⚪️ between. A stage turns 🔴 or 🟢 only beyond 10 % *and* 120 ms. Two
departures: equal file names get the folders that tell them apart as column titles, and a pipe in a name is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fuseproof.harness.perf.comparison import distinct_labels
from fuseproof.harness.perf.dump import PerfDump, is_legacy_step

E2E_TOLERANCE_PERCENT = 2.0
STAGE_TOLERANCE = 0.1
STAGE_TOLERANCE_MS = 120.0
LEGACY_LOOP = "Denoising Loop"


@dataclass(frozen=True)
class _Stages:
    """Stage → ms with equal names summed, per-step entries of old dumps folded into one, and how many those were."""

    durations_ms: dict[str, float]
    loop_count: int


def render_sglang_report(dumps: Sequence[PerfDump], *, timestamp: datetime) -> str:
    """The report over two dumps or more, the first being the baseline; ``timestamp`` goes into its metadata.

    A stage that a dump lacks stands as 0.00, as in sglang's report.
    """
    stages = [_consolidate(dump) for dump in dumps]
    labels = [_cell(label) for label in distinct_labels([dump.path for dump in dumps])[1:]]
    order = _row_order(stages)
    if len(dumps) == 2:
        sections = [_pair_summary(dumps[0], dumps[1]), _pair_stages(stages[0], stages[1], order)]
        labels = ["New"]
    else:
        sections = [_many_summary(dumps, labels), _many_stages(stages, order, labels)]
    lines = ["### Performance Comparison Report", ""]
    for section in sections:
        lines += [*section, "", ""]
    return "\n".join([*lines, *_metadata(dumps, labels, timestamp)]) + "\n"


def missing_stage_notes(dumps: Sequence[PerfDump]) -> list[str]:
    """What the report shows as 0.00 although the stage never ran; for stderr, since its format has no place for it."""
    labels = distinct_labels([dump.path for dump in dumps])
    every_stage = dict.fromkeys(name for dump in dumps for name in dump.stages)
    return [
        f"{label} has no stage {name}; sglang's report shows it as 0.00"
        for label, dump in zip(labels, dumps, strict=True)
        for name in every_stage
        if name not in dump.stages
    ]


def _consolidate(dump: PerfDump) -> _Stages:
    durations_ms: dict[str, float] = {}
    loop_count = 0
    for recorded_name, duration_ms in dump.stage_entries:
        is_step = is_legacy_step(recorded_name)
        loop_count += is_step
        name = LEGACY_LOOP if is_step else recorded_name
        durations_ms[name] = durations_ms.get(name, 0.0) + duration_ms
    return _Stages(durations_ms, loop_count)


def _row_order(stages: Sequence[_Stages]) -> list[str]:
    """The last candidate's stages first, then what earlier candidates add, then what only the baseline has."""
    newest_first = [*reversed(stages[1:]), stages[0]]
    return list(dict.fromkeys(name for entry in newest_first for name in entry.durations_ms))


def _pair_summary(baseline: PerfDump, new: PerfDump) -> list[str]:
    difference_ms, percent = new.total_ms - baseline.total_ms, _percent(baseline.total_ms, new.total_ms)
    mark = _e2e_mark(percent)
    latency = f"{baseline.total_ms:.2f} ms | {new.total_ms:.2f} ms | **{difference_ms:+.2f} ms ({percent:+.1f}%)**"
    throughput = f"{1000 / baseline.total_ms:.2f} req/s | {1000 / new.total_ms:.2f} req/s"
    return [
        "#### 1. High-level Summary",
        "| Metric | Baseline | New | Diff | Status |",
        "| :--- | :--- | :--- | :--- | :--- |",
        f"| **E2E Latency** | {latency} | {mark} |",
        f"| **Throughput** | {throughput} | - | - |",
    ]


def _pair_stages(baseline: _Stages, new: _Stages, order: Sequence[str]) -> list[str]:
    lines = [
        "#### 2. Stage Breakdown",
        "| Stage Name | Baseline (ms) | New (ms) | Diff (ms) | Diff (%) | Status |",
        "| :--- | :--- | :--- | :--- | :--- | :--- |",
    ]
    for name in order:
        before_ms, after_ms = baseline.durations_ms.get(name, 0.0), new.durations_ms.get(name, 0.0)
        title = _cell(name) + (_loop_count(baseline, new) if name == LEGACY_LOOP else "")
        change = f"{after_ms - before_ms:+.2f} | {_percent(before_ms, after_ms):+.1f}%"
        lines.append(f"| {title} | {before_ms:.2f} | {after_ms:.2f} | {change} | {_stage_mark(before_ms, after_ms)} |")
    return lines


def _many_summary(dumps: Sequence[PerfDump], labels: Sequence[str]) -> list[str]:
    baseline_ms = dumps[0].total_ms
    cells = []
    for dump in dumps[1:]:
        percent = _percent(baseline_ms, dump.total_ms)
        cells.append(f"{dump.total_ms:.2f} ms ({percent:+.1f}%) {_e2e_mark(percent)}")
    return [
        "#### 1. High-level Summary",
        *_many_header("Metric", labels),
        f"| **E2E Latency** | {baseline_ms:.2f} ms | {' | '.join(cells)} |",
    ]


def _many_stages(stages: Sequence[_Stages], order: Sequence[str], labels: Sequence[str]) -> list[str]:
    lines = ["#### 2. Stage Breakdown", *_many_header("Stage Name", labels)]
    for name in order:
        before_ms = stages[0].durations_ms.get(name, 0.0)
        cells = []
        for entry in stages[1:]:
            after_ms = entry.durations_ms.get(name, 0.0)
            percent = _percent(before_ms, after_ms)
            cells.append(f"{after_ms:.2f} ({percent:+.1f}%) {_stage_mark(before_ms, after_ms)}")
        lines.append(f"| {_cell(name)} | {before_ms:.2f} | {' | '.join(cells)} |")
    return lines


def _many_header(first: str, labels: Sequence[str]) -> list[str]:
    rules = " | ".join(":---" for _ in labels)
    return [f"| {first} | Baseline | {' | '.join(labels)} |", f"| :--- | :--- | {rules} |"]


def _metadata(dumps: Sequence[PerfDump], labels: Sequence[str], timestamp: datetime) -> list[str]:
    commits = [dump.raw.get("commit_hash", "N/A") for dump in dumps]
    return [
        "<details>",
        "<summary>Metadata</summary>",
        "",
        f"- Baseline Commit: `{commits[0]}`",
        *(f"- {label} Commit: `{commit}`" for label, commit in zip(labels, commits[1:], strict=True)),
        f"- Timestamp: {timestamp.isoformat()}",
        "</details>",
    ]


def _loop_count(baseline: _Stages, new: _Stages) -> str:
    before, after = baseline.loop_count or 1, new.loop_count or 1
    return f" ({after} steps)" if before == after else f" ({before}->{after} steps)"


def _percent(before: float, after: float) -> float:
    return (after - before) / before * 100 if before else 0.0


def _e2e_mark(percent: float) -> str:
    if percent < -E2E_TOLERANCE_PERCENT:
        return "✅"
    return "❌" if percent > E2E_TOLERANCE_PERCENT else "⚪️"


def _stage_mark(before_ms: float, after_ms: float) -> str:
    if after_ms > max(before_ms * (1 + STAGE_TOLERANCE), before_ms + STAGE_TOLERANCE_MS):
        return "🔴"
    is_faster = after_ms < min(before_ms * (1 - STAGE_TOLERANCE), before_ms - STAGE_TOLERANCE_MS)
    return "🟢" if is_faster else "⚪️"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
