"""What the two arms are meant to differ in, by the plan's own words: the treatment. Anything else is unequal work."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from fuseproof.harness.number_format import shortened
from fuseproof.schedules.plan import Arm

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis

MOST_DIFFERENCES = 6
LONGEST_VALUE = 80
NOTHING = "nothing"


def treatment_text(analysis: CampaignAnalysis) -> str | None:
    """``Arms differ only in: --fastpaths (off against auto)``; None for an imported campaign, whose arms are recorded.

    What the runs recorded besides is named behind it, and then "only" is not said.
    """
    if analysis.campaign.origin is not None:
        return None
    arms = analysis.plan.arms
    found = declared_differences(arms.baseline, arms.candidate)
    shown = [shortened(text, 3 * LONGEST_VALUE) for text in found[:MOST_DIFFERENCES]]
    hidden = len(found) - len(shown)
    declared = "; ".join([*shown, *([f"{hidden} more"] if hidden else [])])
    others = dict.fromkeys(
        text for cell in analysis.cells for text in (*cell.equal_work.differences, *cell.equal_work.notes)
    )
    if others and found:
        return f"Arms are declared to differ in: {declared}; their runs differ in more (Limitations)."
    if not found:
        return "Arms are declared alike" + ("; their runs differ (Limitations)." if others else ": an A/A comparison.")
    return f"Arms differ only in: {declared}."


def declared_differences(baseline: Arm, candidate: Arm) -> list[str]:
    """Flags by name, then every other key of the plan in which the arms differ; names do not count."""
    before, after = _facts(baseline), _facts(candidate)
    return [
        f"{key} ({_value(before.get(key))} against {_value(after.get(key))})"
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]


def _facts(arm: Arm) -> dict[str, Any]:
    facts: dict[str, Any] = dict(_flags(arm.flags))
    for key, value in arm.model_dump(exclude={"name", "flags"}).items():
        if isinstance(value, dict):
            facts |= {f"{key} {name}": entry for name, entry in value.items()}
        elif value is not None:
            facts[key] = value
    return facts


def _flags(text: str) -> dict[str, str]:
    """Flag → value; a flag without a value is on, words without a flag belong to the one before."""
    found: dict[str, str] = {}
    name = ""
    for word in shlex.split(text):
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found[name] = value
        else:
            found[name] = f"{found.get(name, '')} {word}".strip()
    return {flag: value or "on" for flag, value in found.items()}


def _value(value: object) -> str:
    return NOTHING if value is None else shortened(str(value), LONGEST_VALUE)
