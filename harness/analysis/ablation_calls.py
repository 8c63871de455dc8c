"""Which fast paths really ran in which arm of an ablation, by the arms' own counters; calls are those of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuseproof.harness.analysis.runs import CellRuns, Run
from fuseproof.schedules.ablation import WHOLE, Ablation

LARGEST_CALLS = 10**15


@dataclass(frozen=True)
class SiteCalls:
    """One site in one arm: mean calls of a run, and its states and reasons over the arm's runs."""

    fused: float
    eager: float
    states: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class UnitCalls:
    """A unit's sites, by name, in three arms; None where there is no such arm, or its runs report no sites."""

    alone: Mapping[str, SiteCalls] | None
    whole: Mapping[str, SiteCalls] | None
    left_out: Mapping[str, SiteCalls] | None

    @staticmethod
    def fused(sites: Mapping[str, SiteCalls] | None) -> float | None:
        """Fused calls of a run at all of the unit's sites."""
        return None if sites is None else sum(site.fused for site in sites.values())


@dataclass(frozen=True)
class RanUnits:
    """``outside`` are sites that ran fused in the arm of all fast paths and belong to no unit."""

    of_unit: Mapping[str, UnitCalls]
    outside: tuple[str, ...]
    requests: float
    """Requests of one run."""


def calls_of_units(runs: CellRuns, ablation: Ablation, letter: Mapping[str, str]) -> RanUnits:
    """Collect the counters; ``letter`` maps the key of each arm to its letter."""
    every = frozenset(ablation.units)
    by_units = {units: _sites(runs, letter[key]) for units, key in ablation.key_of.items()}
    whole = by_units[every]
    found = {}
    for unit, own in ablation.units.items():
        alone = by_units.get(ablation.needed_by(unit) | {unit})
        left_out = by_units.get(every - {unit} - ablation.needing(unit))
        found[unit] = UnitCalls(_only(own, alone), _only(own, whole), _only(own, left_out))
    named = {site for own in ablation.units.values() for site in own}
    outside = tuple(site for site, calls in (whole or {}).items() if calls.fused and site not in named)
    return RanUnits(found, outside, _requests(runs, letter[WHOLE]))


def _only(names: tuple[str, ...], sites: Mapping[str, SiteCalls] | None) -> Mapping[str, SiteCalls] | None:
    return None if sites is None else {name: sites[name] for name in names if name in sites}


def _sites(runs: CellRuns, letter: str) -> Mapping[str, SiteCalls] | None:
    reports = [_report(run) for run in runs.runs if run.record.arm == letter]
    reports = [report for report in reports if report]
    if not reports:
        return None
    names = sorted({name for report in reports for name in report})
    return {name: _calls([report[name] for report in reports if name in report], len(reports)) for name in names}


def _report(run: Run) -> Mapping[str, Mapping[str, Any]]:
    report = run.record.fastpaths or (run.dump.fastpaths if run.dump else {})
    sites = report.get("sites")
    if not isinstance(sites, Mapping):
        return {}
    return {str(name): site for name, site in sites.items() if isinstance(site, Mapping)}


def _calls(sites: list[Mapping[str, Any]], runs: int) -> SiteCalls:
    return SiteCalls(
        fused=sum(_number(site.get("calls_fused")) for site in sites) / runs,
        eager=sum(_number(site.get("calls_eager")) for site in sites) / runs,
        states=tuple(dict.fromkeys(str(site.get("state") or "unknown") for site in sites)),
        reasons=tuple(dict.fromkeys(str(site["reason"]) for site in sites if site.get("reason"))),
    )


def _number(value: object) -> int:
    """A count of calls; what is none, or larger than any, counts as 0."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_CALLS
    return value if isinstance(value, int) and is_count else 0


def _requests(runs: CellRuns, letter: str) -> float:
    counts = [len(run.dump.requests) for run in runs.runs if run.record.arm == letter and run.dump is not None]
    return max(1.0, sum(counts) / len(counts)) if counts else 1.0
