"""What the gate did in a cell's runs: whether it protected what ran, and whether it made the times worthless."""

from __future__ import annotations

from collections import Counter

from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, CellRuns
from fuseproof.harness.number_format import count
from fuseproof.harness.perf import checked_calls
from fuseproof.harness.perf.checked_calls import ENFORCE, gate_of
from fuseproof.harness.statistics.reasons import Reason

CODE = checked_calls.CODE


def checked_runs(cell: CellRuns) -> tuple[Reason, ...]:
    """Why a cell has no ratio: runs of either arm that computed every call of a fast path twice; one reason an arm."""
    found = []
    for arm in ARMS:
        runs = cell.of_arm(arm)
        flags = [flag for run in runs if run.dump is not None and (flag := checked_calls.checking_flag(run.dump))]
        if flags:
            shown = " and ".join(dict.fromkeys(flags))
            who = f"{len(flags)} of {count(len(runs), f'{ARM_WORDS[arm]} run')}"
            found.append(Reason(CODE, f"{who} {checked_calls.checked_text(shown)}", checked_calls.NEXT_STEP))
    return tuple(found)


def unprotected_text(cell: CellRuns) -> str | None:
    """``the gate observed in 2 of 2 candidate runs``; None where every candidate run's gate enforced.

    A run that does not say what its gate did is not known to be protected. Runs without fast paths have no say.
    """
    runs = [run for run in cell.of_arm("B") if run.dump is not None and run.dump.fastpaths.get("sites")]
    gates = Counter(gate_of(run.dump) for run in runs if run.dump is not None)
    texts = [
        f"the gate {_GATE_WORDS.get(str(gate), f'was {gate}')} in {number} of {count(len(runs), 'candidate run')}"
        for gate, number in gates.items()
        if gate != ENFORCE
    ]
    return " and ".join(texts) or None


_GATE_WORDS = {"observe": "observed", "off": "was off", "None": "is not recorded"}
