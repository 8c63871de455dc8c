"""What the two arms are meant to differ in, by the plan's own words: the treatment. Anything else is unequal work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fuseproof.harness.analysis.campaign_warnings import short_commit
from fuseproof.harness.analysis.declared import are_other_programs, flag_values
from fuseproof.harness.number_format import shortened
from fuseproof.schedules.ablation import FASTPATHS
from fuseproof.schedules.plan import Arm, Plan

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis

MOST_DIFFERENCES = 6
LONGEST_VALUE = 80
NOTHING = "nothing"
A_A = "Arms are declared alike: an A/A comparison."


def treatment_text(analysis: CampaignAnalysis) -> str | None:
    """``Arms differ only in: --fastpaths (off against auto)``; None for an imported campaign, whose arms are recorded.

    What the runs recorded besides is named behind it, commits too, and then "only" is not said. Of arms that are other
    programs the commits are part of what is declared.
    """
    plan = analysis.plan
    if analysis.campaign.origin is not None:
        return None
    if not analysis.has_several_candidates:
        return _text(plan.arms.baseline, plan.arms.candidate, analysis.cells)
    if plan.ablation is not None and _differ_in_fastpaths_alone(plan, analysis.cells):
        return f"Arms differ only in: {FASTPATHS} (each one alone, each left out, none and all)."
    texts = []
    for letter in plan.letters[1:]:
        own = [cell for cell in analysis.cells if cell.runs.candidate == letter]
        texts.append(f"{letter} against A: {_text(plan.arms.baseline, plan.arm(letter), own)}")
    return " ".join(texts)


def _differ_in_fastpaths_alone(plan: Plan, cells: Sequence[CellAnalysis]) -> bool:
    """Whether neither the arms of an ablation nor their runs differ in anything else."""
    declared = [declared_differences(plan.arms.baseline, arm) for arm in plan.arms.all[1:]]
    others = any(cell.equal_work.differences or cell.equal_work.notes for cell in cells)
    is_alone = all(len(found) == 1 and found[0].startswith(f"{FASTPATHS} (") for found in declared)
    return is_alone and not others and _commits(cells) is None


def _text(baseline: Arm, candidate: Arm, cells: Sequence[CellAnalysis]) -> str:
    found = declared_differences(baseline, candidate)
    commits = _commits(cells)
    shown = [shortened(text, 3 * LONGEST_VALUE) for text in found[:MOST_DIFFERENCES]]
    hidden = len(found) - len(shown)
    declared = "; ".join([*shown, *([f"{hidden} more"] if hidden else [])])
    others = dict.fromkeys(text for cell in cells for text in (*cell.equal_work.differences, *cell.equal_work.notes))
    beyond = [*(["more (Limitations)"] if others else []), *([commits] if commits else [])]
    if are_other_programs(baseline, candidate) and commits:
        declared, beyond = f"{declared}; {commits}", beyond[:-1]
    if not found:
        return f"Arms are declared alike; their runs differ in {' and '.join(beyond)}." if beyond else A_A
    if beyond:
        return f"Arms are declared to differ in: {declared}; their runs differ in {' and '.join(beyond)} as well."
    return f"Arms differ only in: {declared}."


def _commits(cells: Sequence[CellAnalysis]) -> str | None:
    """``commit (0123456789ab against fedcba987654)``; None where the arms' runs recorded the same ones, or none."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        for arm, commits in cell.equal_work.commits:
            found.setdefault(arm, {}).update(dict.fromkeys(map(short_commit, commits)))
    recorded = [set(commits) for _, commits in sorted(found.items()) if commits]
    if len(recorded) < 2 or all(commits == recorded[0] for commits in recorded):
        return None
    return f"commit ({' against '.join(' and '.join(commits) for _, commits in sorted(found.items()) if commits)})"


def declared_differences(baseline: Arm, candidate: Arm) -> list[str]:
    """Flags by name, then every other key of the plan in which the arms differ; names do not count."""
    before, after = _facts(baseline), _facts(candidate)
    return [
        f"{key} ({_value(before.get(key))} against {_value(after.get(key))})"
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]


def _facts(arm: Arm) -> dict[str, Any]:
    facts: dict[str, Any] = dict(flag_values(arm.flags))
    for key, value in arm.model_dump(exclude={"name", "flags"}).items():
        if isinstance(value, dict):
            facts |= {f"{key} {name}": entry for name, entry in value.items()}
        elif value is not None:
            facts[key] = value
    return facts


def _value(value: object) -> str:
    return NOTHING if value is None else shortened(str(value), LONGEST_VALUE)
