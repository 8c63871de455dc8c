"""Launches added up: rows, steps, stages, sites, attribution. Every launch is in one row and one step, never in two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseproof.pipelines.profiling import launches as owners
from fuseproof.pipelines.profiling.events import SiteCall
from fuseproof.pipelines.profiling.launches import Launch
from fuseproof.pipelines.profiling.tensors import distinct_bytes
from fuseproof.pipelines.profiling.typical import summed

UNATTRIBUTED_SHOWN = 20
DIFFERENCES_SHOWN = 3


@dataclass(frozen=True)
class Step:
    """One complete step of a stage (of other stages: the whole), on the host's clock in ns, and its launches."""

    stage: str
    index: int
    begin: int
    end: int
    launches: tuple[Launch, ...]

    @property
    def device_us(self) -> float:
        """Time of all launches."""
        return microseconds(sum(one.nanoseconds for one in self.launches))

    def to_json(self) -> dict[str, Any]:
        """An entry of ``steps``."""
        replays = {(one.graph, one.launched) for one in self.launches if one.from_graph}
        return {
            "stage": self.stage,
            "index": self.index,
            "wall_us": microseconds(self.end - self.begin),
            "device_us": self.device_us,
            "kernels": len(self.launches),
            "graph_launches": len(replays),
        }


def microseconds(nanoseconds: int) -> float:
    """Exact: all sums are of whole nanoseconds."""
    return nanoseconds / 1000


def stages_table(steps: Sequence[Step], steps_of_request: Mapping[str, int]) -> list[dict[str, Any]]:
    """Each stage over its profiled steps, in the order in which they ran."""
    found: dict[str, list[Step]] = {}
    for step in steps:
        found.setdefault(step.stage, []).append(step)
    return [
        {
            "name": name,
            "steps": len(own),
            "steps_of_request": steps_of_request.get(name, len(own)),
            "wall_us": microseconds(sum(step.end - step.begin for step in own)),
            "device_us": microseconds(sum(one.nanoseconds for step in own for one in step.launches)),
            "kernels": sum(len(step.launches) for step in own),
        }
        for name, own in found.items()
    ]


def rows_table(steps: Sequence[Step], typical: Mapping[int, int] | None = None) -> list[dict[str, Any]]:
    """One row for all launches that are alike, the most expensive first.

    ``typical`` says of a CPU's launches, by ``id``, what those that were interrupted count for in ``typical_us``; None
    on a GPU, where every launch is what it took.
    """
    found: dict[tuple[Any, ...], list[tuple[int, Launch]]] = {}
    places: dict[str, int] = {}
    for step in steps:
        place = places[step.stage] = places.get(step.stage, -1) + 1
        for one in step.launches:
            key = (
                step.stage, one.module or "", one.module_class, one.component, one.site, one.site_state, one.line,
                one.operation or one.kernel, one.kernel, one.class_, one.key, one.bytes, one.from_graph,
            )  # fmt: skip
            found.setdefault(key, []).append((place, one))
    names = (
        "stage", "module", "module_class", "component", "site", "site_state", "line", "operation", "kernel", "class",
        "key", "bytes", "from_graph",
    )  # fmt: skip
    rows = [
        dict(zip(names, key, strict=True)) | _row_times(own, places[key[0]] + 1, typical) for key, own in found.items()
    ]
    return sorted(rows, key=lambda row: (-ranked_by(row), row["stage"], row["module"], row["kernel"]))


def ranked_by(row: Mapping[str, Any]) -> float:
    """The time that a row's rank goes by: the typical one where there is one."""
    typical, measured = row["typical_us"], row["device_us"]
    return float(measured if typical is None else typical)


def _row_times(own: Sequence[tuple[int, Launch]], steps: int, typical: Mapping[int, int] | None) -> dict[str, Any]:
    calls, times = [0] * steps, [0] * steps
    for place, one in own:
        calls[place] += 1
        times[place] += one.nanoseconds
    return {
        "calls": len(own),
        "device_us": microseconds(sum(times)),
        "calls_by_step": calls,
        "device_us_by_step": [microseconds(time) for time in times],
        "typical_us": None if typical is None else microseconds(summed((one for _, one in own), typical)),
    }


def unequal_steps(stages: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of each stage whose steps do not launch equally many, how many each launched and what the difference is."""
    told = []
    for stage in stages:
        totals = [0] * stage["steps"]
        by_place: dict[tuple[str, str | None], list[int]] = {}
        for row in rows:
            if row["stage"] == stage["name"]:
                counts = by_place.setdefault((row["operation"], row["line"]), [0] * len(totals))
                for place, calls in enumerate(row["calls_by_step"]):
                    totals[place] += calls
                    counts[place] += calls
        if len(set(totals)) > 1:
            differing = [(what, counts) for what, counts in by_place.items() if len(set(counts)) > 1]
            shown = [
                f"{operation}{f' at {line}' if line else ''} {_listed(counts)}"
                for (operation, line), counts in sorted(differing, key=lambda pair: min(pair[1]) - max(pair[1]))
            ]
            more = f"; {len(shown) - DIFFERENCES_SHOWN} more" if len(shown) > DIFFERENCES_SHOWN else ""
            told.append(
                f"the profiled steps of {stage['name']} do not launch equally many ({_listed(totals)}): "
                + "; ".join(shown[:DIFFERENCES_SHOWN])
                + more
            )
    return told


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))


def attribution_table(launches: Iterable[Launch]) -> dict[str, Any]:
    """How much of the time is joined to what, and the kernels that are joined to nothing."""
    totals = dict.fromkeys(("all", "module", "site or module", "line"), 0)
    lost: dict[str, int] = {}
    for one in launches:
        totals["all"] += one.nanoseconds
        has_module = one.is_attributed and one.module is not None
        totals["module"] += one.nanoseconds * has_module
        totals["line"] += one.nanoseconds * (one.is_attributed and one.line is not None)
        # What the loop itself launches (a solver's step) belongs to no module; its line says where it is from.
        is_own = one.is_attributed and one.component == owners.PIPELINE and one.line is not None
        if has_module or one.site is not None or is_own:
            totals["site or module"] += one.nanoseconds
        else:
            lost[one.kernel] = lost.get(one.kernel, 0) + one.nanoseconds
    whole = totals["all"]

    def share(name: str) -> float:
        return totals[name] / whole if whole else 1.0

    largest = sorted(lost.items(), key=lambda pair: -pair[1])[:UNATTRIBUTED_SHOWN]
    return {
        "device_us": microseconds(whole),
        "to_module": share("module"),
        "to_site_or_module": share("site or module"),
        "to_line": share("line"),
        "unattributed": [{"kernel": kernel, "device_us": microseconds(time)} for kernel, time in largest],
    }


def sites_table(
    report: Mapping[str, Any],
    steps: Sequence[Step],
    calls: Sequence[SiteCall],
    denoising_steps: int,
    noted_steps: int,
) -> list[dict[str, Any]]:
    """Each site of the mount: its state, its calls by key, its own launches.

    ``calls`` are what gates told of in ``noted_steps`` denoising steps; they stand for all ``denoising_steps``. Time is
    that of launches whose innermost site it is, so that a kernel is not counted in the blocks round it too.
    """
    times: dict[str, int] = {}
    for step in steps:
        for one in step.launches:
            if one.site is not None:
                times[one.site] = times.get(one.site, 0) + one.nanoseconds
    scale = denoising_steps / noted_steps if noted_steps else 1.0
    by_site: dict[str, list[SiteCall]] = {}
    for call in calls:
        by_site.setdefault(call.site, []).append(call)
    return [
        {
            "site": name,
            "state": entry["state"],
            "reason": entry.get("reason"),
            "calls_fused": entry["calls_fused"],
            "calls_eager": entry["calls_eager"],
            "keys": _keys(by_site.get(name, ()), scale),
            "first_sight_ms": entry["first_sight_ms"],
            "jit_ms": entry["jit_ms"],
            "device_us": microseconds(times[name]) if name in times else None,
            "bytes": _bytes_per_step(by_site.get(name, ()), noted_steps),
        }
        for name, entry in report.get("sites", {}).items()
    ]


def _keys(calls: Sequence[SiteCall], scale: float) -> list[dict[str, Any]]:
    counted: dict[tuple[str, str], int] = {}
    for call in calls:
        counted[call.key, call.layout] = counted.get((call.key, call.layout), 0) + 1
    ordered = sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))
    return [{"key": key, "calls": round(number * scale), "layout": layout} for (key, layout), number in ordered]


def _bytes_per_step(calls: Sequence[SiteCall], steps: int) -> int | None:
    known = [call for call in calls if call.outputs and call.inputs]
    if not known or not steps:
        return None
    return round(sum(distinct_bytes(call.inputs) + distinct_bytes(call.outputs) for call in known) / steps)
