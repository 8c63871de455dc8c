"""GPU samples of single slots as lines for the eye, read back from ``telemetry.jsonl``; HTML only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.campaign.gpu_telemetry import working_cards
from fuseproof.harness.number_format import number
from fuseproof.harness.report.document import Part, Stretch, Trace

MOST_SLOTS = 24
MOST_POINTS = 240
MOST_FILE_BYTES = 16 * 2**20
LINES = (("sm_clock_mhz", "SM clock", "MHz"), ("power_w", "power", "W"))


def slot_traces(analysis: CampaignAnalysis) -> tuple[Part, ...]:
    """SM clock and power of the first counting slots, one picture each; a damaged line or file draws nothing."""
    records = [run.record for runs in analysis.all_runs for run in runs.runs if run.record.gpu is not None]
    found: list[Part] = []
    for record in records[:MOST_SLOTS]:
        lines = list(_lines(analysis.directory / record.directory / "telemetry.jsonl"))
        for uuid in [card.uuid for card in working_cards(record.gpu)][:1]:
            samples = [line for line in lines if line.get("gpu") == uuid]
            found += [trace for key, what, unit in LINES if (trace := _trace(record.id, samples, key, what, unit))]
    return tuple(found)


def _trace(slot: str, samples: list[Mapping[str, Any]], key: str, what: str, unit: str) -> Trace | None:
    points = [
        (moment, height)
        for sample in samples
        if (moment := _number(sample.get("t_s"))) is not None and (height := _number(sample.get(key))) is not None
    ]
    if len(points) < 2:
        return None
    first, last = points[0][0], points[-1][0]
    span_s = (last - first) or 1.0
    low, high = min(value for _, value in points), max(value for _, value in points)
    span = (high - low) or 1.0
    step = max(1, -(-len(points) // MOST_POINTS))
    shown = tuple(
        (round((moment - first) / span_s, 4), round((value - low) / span, 4)) for moment, value in points[::step]
    )
    requests = [_number(sample.get("t_s")) for sample in samples if sample.get("phase") == "request"]
    inside = [moment for moment in requests if moment is not None]
    request = (
        Stretch(round((min(inside) - first) / span_s, 4), round((max(inside) - first) / span_s, 4)) if inside else None
    )
    title = f"{slot}, {what}, {number(span_s, 1)} s"
    return Trace(title, shown, f"{number(low, 0)} {unit}", f"{number(high, 0)} {unit}", request)


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9
    return float(value) if is_number and isinstance(value, int | float) else None


def _lines(path: Path) -> Iterable[Mapping[str, Any]]:
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_FILE_BYTES:
            return
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict):
            yield values
