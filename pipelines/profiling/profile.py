"""A profile put together from recordings: everything but running the request. Schema ``fuseproof.profile/1``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseproof.pipelines.profiling import events
from fuseproof.pipelines.profiling.chains import chains_table
from fuseproof.pipelines.profiling.events import Recording
from fuseproof.pipelines.profiling.graph_alignment import align
from fuseproof.pipelines.profiling.joining import join
from fuseproof.pipelines.profiling.known_chains import FastPath
from fuseproof.pipelines.profiling.launches import Launch, Names
from fuseproof.pipelines.profiling.tables import (
    Step,
    attribution_table,
    rows_table,
    sites_table,
    stages_table,
    unequal_steps,
)
from fuseproof.pipelines.profiling.typical import outliers, typical_nanoseconds
from fuseproof.pipelines.stages import DENOISING

SCHEMA = "fuseproof.profile/1"
NOTE = "times under a profiler; never compare them with timed runs"
NO_SAVING = (
    "a CPU's operations are bound by their arithmetic as much as by memory, so what fusing would save does not follow "
    "from the bytes"
)
LEAST_ATTRIBUTED = 0.98


@dataclass(frozen=True)
class Seen:
    """What was recorded: the request's stretches and, where graphs were replayed, a step of it without replay."""

    recordings: tuple[Recording, ...]
    eager: Recording | None = None


def tables(
    seen: Seen,
    names: Names,
    report: Mapping[str, Any],
    *,
    steps_of_request: Mapping[str, int],
    bandwidth_gb_s: float | None,
    paths: Sequence[FastPath],
) -> dict[str, Any]:
    """``stages``, ``steps``, ``rows``, ``sites``, ``chains``, ``attribution`` and ``warnings`` of a profile.

    Of ``disturbance`` what launches tell. On a CPU no chain has a floor or a saving (:data:`NO_SAVING`).
    """
    eager = join(seen.eager, names) if seen.eager is not None else []
    steps: list[Step] = []
    warnings: list[str] = []
    for recording in seen.recordings:
        found = windows(recording)
        joined = join(recording, names)
        if any(one.from_graph for one in joined):
            aligned = align(joined, [(begin, end) for _, _, begin, end in found], eager)
            joined = aligned.launches
            warnings += [aligned.warning] if aligned.warning else []
        steps += steps_in(found, joined)
    launches = [one for step in steps for one in step.launches]
    on_device = any(recording.on_device for recording in seen.recordings)
    typical = None if on_device else _typical_of_stages(steps)
    attribution = attribution_table(launches)
    if launches and attribution["to_site_or_module"] < LEAST_ATTRIBUTED:
        share = attribution["to_site_or_module"]
        warnings.append(f"only {share:.1%} of the time is joined to a module or a site; 98% is what is aimed at")
    denoising = [step for step in steps if step.stage == DENOISING]
    noted = seen.eager if seen.eager is not None and any(one.from_graph for one in launches) else None
    sources = [noted] if noted is not None else list(seen.recordings)
    calls = [call for recording in sources for call in calls_in_steps(recording)]
    noted_steps = len(denoising) if noted is None else sum(stage == DENOISING for stage, *_ in windows(noted))
    stages, rows = stages_table(steps, steps_of_request), rows_table(steps, typical)
    warnings += unequal_steps(stages, rows)
    return {
        "stages": stages,
        "steps": [step.to_json() for step in steps],
        "rows": rows,
        "sites": sites_table(report, steps, calls, len(denoising), noted_steps),
        "chains": chains_table(steps, bandwidth_gb_s if on_device else None, paths, typical),
        "attribution": attribution,
        "disturbance": outliers(launches, typical or {}),
        "warnings": warnings,
    }


def _typical_of_stages(steps: Sequence[Step]) -> dict[int, int]:
    by_stage: dict[str, list[Launch]] = {}
    for step in steps:
        by_stage.setdefault(step.stage, []).extend(step.launches)
    return {number: time for own in by_stage.values() for number, time in typical_nanoseconds(own).items()}


def windows(recording: Recording) -> list[tuple[str, int, int, int]]:
    """Stage, index, begin and end of every complete step: a beginning without an end, or the reverse, is none."""
    begun: dict[str, int] = {}
    found = []
    marks = [call for call in recording.calls if call.kind == events.MARK]
    for mark in sorted(marks, key=lambda one: one.start):
        if mark.name.startswith(events.STEP_BEGINS):
            begun[mark.name.removeprefix(events.STEP_BEGINS)] = mark.end
        elif mark.name.startswith(events.STEP_ENDS):
            name = mark.name.removeprefix(events.STEP_ENDS)
            if name in begun:
                stage, _, index = name.rpartition(" ")
                found.append((stage, int(index), begun.pop(name), mark.start))
    return found


def steps_in(found: Sequence[tuple[str, int, int, int]], launches: Sequence[Launch]) -> list[Step]:
    """The steps with the launches that the host issued in each; what lies between two steps is in none."""
    return [
        Step(stage, index, begin, end, tuple(one for one in launches if begin <= one.launched < end))
        for stage, index, begin, end in found
    ]


def calls_in_steps(recording: Recording) -> list[events.SiteCall]:
    """The calls of sites inside complete steps."""
    found = windows(recording)
    numbers = {
        int(call.name.rpartition("#")[2])
        for call in recording.calls
        if call.kind == events.MARK
        and call.name.startswith(events.SITE_MARK)
        and any(begin <= call.start < end for _, _, begin, end in found)
    }
    return [call for call in recording.sites if call.number in numbers]
