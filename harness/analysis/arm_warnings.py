"""What the arms themselves warned of in their perf dumps: a run that says so is quoted, once, with how many said it."""

from __future__ import annotations

import re

from fuseproof.harness.analysis.run_warnings import COMPILE_INSIDE, COMPILE_STEP, run_warnings
from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, CellRuns
from fuseproof.harness.number_format import shortened
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.schedules.order import ArmLetter

FIRST_SIGHT = "FIRST_SIGHT"
ARM_WARNING = "ARM_WARNING"
COMPILED = "compiled inside a timed request"
MOST_WARNINGS = 12
LONGEST_TEXT = 220
SAID_ELSEWHERE = ("dummy weights", "random weights: seeded", "every call of a fast path ran fused and eager")
"""The report says these itself, in words of its own."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def arm_warnings(cell: CellRuns) -> tuple[Reason, ...]:
    """Each distinct warning of the counting runs, with arms and numbers of runs; texts that differ in numbers are one.

    A first sight inside a timed request is a cost of the check, not of the fast path, and has a code of its own; so
    has a compilation. What the runs state of how they were measured comes first.
    """
    quoted: dict[str, str] = {}
    runs: dict[str, dict[ArmLetter, int]] = {}
    for arm in ARMS:
        for run in cell.of_arm(arm):
            for text in dict.fromkeys(run.dump.warnings if run.dump is not None else ()):
                if text.startswith(SAID_ELSEWHERE):
                    continue
                kind = _NUMBER.sub("#", text)
                quoted.setdefault(kind, text)
                runs.setdefault(kind, {}).setdefault(arm, 0)
                runs[kind][arm] += 1
    found = [_reason(cell, quoted[kind], by_arm) for kind, by_arm in runs.items()]
    ordered = sorted(found, key=lambda reason: reason.code not in (FIRST_SIGHT, COMPILE_INSIDE))
    return (*run_warnings(cell), *ordered[:MOST_WARNINGS])


def _reason(cell: CellRuns, text: str, by_arm: dict[ArmLetter, int]) -> Reason:
    shares = [f"{said} of {len(cell.of_arm(arm))} {ARM_WORDS[arm]} runs" for arm, said in by_arm.items()]
    detail = f"{' and '.join(shares)} warn: {shortened(text, LONGEST_TEXT)}"
    if "first sight" in text:
        step = "Warm up every shape and step of the request in both arms: --warmup --warmup-steps 2."
        return Reason(FIRST_SIGHT, detail, step)
    if COMPILED in text:
        return Reason(COMPILE_INSIDE, detail, COMPILE_STEP)
    return Reason(ARM_WARNING, detail, "Read the perf dumps of those runs.")
