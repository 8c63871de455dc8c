"""What else the machine did during the runs that count: disturbed runs, and runs of which nobody can tell.

A disturbed run caps the verdict. A run too short to tell is not an undisturbed one: where somebody started on a busy
machine all the same (``--allow-busy``) nothing vouches for it, and it caps the verdict too; elsewhere the machine was
found quiet before slot 1, and a warning stands beside the word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuseproof.harness.analysis.runs import CellRuns, Run
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.records import Contention
from fuseproof.harness.campaign.telemetry import PROCESSES_NAMED
from fuseproof.harness.statistics.reasons import CONTENTION, Reason

CONTENTION_UNMEASURED = "CONTENTION_UNMEASURED"
ALLOW_BUSY = "--allow-busy"
LONGEST_SHORT_S = 1.0
"""No machine needs more to tell whether a run was disturbed; a longer one without a share was not watched."""
SMALLEST_SHARE_NAMED = 0.01
MOST_NAMED = 3


def contention_caps(campaign: Campaign, runs: CellRuns) -> tuple[Reason, ...]:
    """Why no word may rest on these runs: some were disturbed, or nobody can tell and the machine was not checked."""
    unmeasured = unmeasured_contention(runs) if _started_all_the_same(campaign) else ()
    return (*contention_reasons(runs), *unmeasured)


def contention_warnings(campaign: Campaign, runs: CellRuns) -> tuple[Reason, ...]:
    """That of some runs nobody can tell, where that is no cap; an imported campaign says it once for all its cells."""
    if campaign.origin is not None or _started_all_the_same(campaign):
        return ()
    return unmeasured_contention(runs)


def unmeasured_contention(runs: CellRuns) -> tuple[Reason, ...]:
    """``CONTENTION_UNMEASURED``, with how long the runs were, when any counting run has no share."""
    blind = _blind(runs.runs)
    if not blind:
        return ()
    longest_s = max((run.record.wall_s or 0.0 for run in blind), default=0.0)
    why = f"they lasted {longest_s:.2g} s at most, too short to tell" if _are_short(blind) else "it was not recorded"
    return (
        Reason(
            CONTENTION_UNMEASURED,
            f"what else the machine did is not known of {len(blind)} of {len(runs.runs)} runs: {why}",
            f"Measure a longer request (more steps or pixels), on a machine that is found quiet: without {ALLOW_BUSY}.",
        ),
    )


def unmeasured_text(everything: Sequence[CellRuns]) -> str | None:
    """The same of a whole campaign, as a sentence."""
    runs = [run for cell in everything for run in cell.runs]
    blind = _blind(runs)
    if not blind:
        return None
    why = "too short to tell" if _are_short(blind) else "not recorded, or too short to tell"
    return f"contention was not measured in {len(blind)} of {len(runs)} runs ({why})"


def _blind(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.record.contention.other_cpu_share is None]


def _are_short(runs: Sequence[Run]) -> bool:
    return all(run.record.wall_s is not None and run.record.wall_s <= LONGEST_SHORT_S for run in runs)


def _started_all_the_same(campaign: Campaign) -> bool:
    """Whether a session was told to start on a busy machine: then no check says that it was quiet."""
    if campaign.origin is not None:
        return False
    return any(ALLOW_BUSY in session.command for session in campaign.sessions) or ALLOW_BUSY in campaign.command


def contention_reasons(runs: CellRuns) -> tuple[Reason, ...]:
    """CONTENTION, naming who used the machine, when any counting run was disturbed."""
    busy = [run.record for run in runs.runs if run.record.contention.busy]
    if not busy:
        return ()
    worst = max(busy, key=lambda record: record.contention.other_cpu_share or 0.0).contention
    used = "" if worst.other_cpu_share is None else f", at worst {100 * worst.other_cpu_share:.0f} % of all cores"
    names = _disturbers([record.contention for record in busy], worst)
    who = f" ({', '.join(names)})" if names else ""
    detail = f"other processes used the machine during {len(busy)} of {len(runs.runs)} runs{used}{who}"
    return (Reason(CONTENTION, detail, "Run it again on a quiet machine."),)


def _disturbers(all_busy: Sequence[Contention], worst: Contention) -> list[str]:
    """Processes that used at least one percent, and a remainder where those of the worst run do not add up."""
    large = [process for busy in all_busy for process in busy.worst if process.cpu_share >= SMALLEST_SHARE_NAMED]
    names = list(dict.fromkeys(process.name for process in sorted(large, key=lambda process: -process.cpu_share)))
    named = math.fsum(process.cpu_share for process in worst.worst if process.cpu_share >= SMALLEST_SHARE_NAMED)
    rest = (worst.other_cpu_share or 0.0) - named
    if rest >= SMALLEST_SHARE_NAMED:
        kind = "ended or short-lived" if len(worst.worst) < PROCESSES_NAMED else "other, ended or short-lived"
        return [*names[:MOST_NAMED], f"{kind} processes {100 * rest:.0f} %"]
    return names[:MOST_NAMED]
