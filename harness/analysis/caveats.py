"""What a campaign cannot say, as sentences: random weights, noise that was not measured, times an arm claims itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, CellRuns, Run
from fuseproof.harness.campaign.records import Contention
from fuseproof.harness.campaign.telemetry import PROCESSES_NAMED, SHORTEST_MEASURABLE_S
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.schedules.plan import Plan

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis

EMBEDDED = "embedded:"
DUMMY_FLAG = re.compile(r"--load-format[ =]dummy\b")
DUMMY_WEIGHTS = "dummy weights: seeded random, not a trained model; says nothing about quality"
EMBEDDED_WEIGHTS = "embedded model: random dummy weights; says nothing about quality"
NO_QUALITY_EVIDENCE = "not quality evidence: random weights"
SMALLEST_SHARE_NAMED = 0.01
MOST_NAMED = 3


def dummy_weights_text(analysis: CampaignAnalysis) -> str | None:
    """That the pictures mean nothing, where a cell ran on random weights; names the cells if only some did."""
    found = [
        _weights_text(analysis, DUMMY_WEIGHTS, _makes_dummy_weights),
        _weights_text(analysis, EMBEDDED_WEIGHTS, _runs_embedded_model),
    ]
    return "; ".join(text for text in found if text) or None


def _weights_text(analysis: CampaignAnalysis, text: str, is_concerned: Callable[[CellRuns], bool]) -> str | None:
    cells = [cell.name for cell in analysis.cells if is_concerned(cell.runs)]
    if not cells:
        return None
    where = "" if len(cells) == len(analysis.cells) else f"{', '.join(cells[:MOST_NAMED])}: "
    return f"{where}{text}"


def _makes_dummy_weights(runs: CellRuns) -> bool:
    """Whether a run was made with ``--load-format dummy``."""
    dumps = [run.dump for run in runs.runs if run.dump is not None]
    if not dumps:
        return DUMMY_FLAG.search(runs.cell.flags) is not None
    return any(dump.config.get("load_format") == "dummy" for dump in dumps)


def _runs_embedded_model(runs: CellRuns) -> bool:
    dumps = [run.dump for run in runs.runs if run.dump is not None]
    if not dumps:
        return EMBEDDED in runs.cell.flags
    return any(
        (dump.model or "").startswith(EMBEDDED) or dump.config.get("model_source") == "embedded" for dump in dumps
    )


def no_quality_evidence_text(runs: CellRuns) -> str | None:
    """Why SSIM, PSNR and a close contract say nothing here: they are asked of weights that are no trained model's."""
    qualities = {run.dump.config.get("quality") for run in runs.runs if run.dump is not None}
    is_about_quality = runs.cell.contract.startswith("close") or bool(qualities - {None, "lossless", "exact"})
    if is_about_quality and (_makes_dummy_weights(runs) or _runs_embedded_model(runs)):
        return NO_QUALITY_EVIDENCE
    return None


def unmeasured_contention_text(analysis: CampaignAnalysis) -> str | None:
    """In how many runs nobody knows what else the machine did."""
    runs = [run for cell in analysis.all_runs for run in cell.runs]
    blind = [run for run in runs if run.record.contention.other_cpu_share is None]
    if not blind:
        return None
    why = f"shorter than {SHORTEST_MEASURABLE_S:g} s" if all(map(_is_short, blind)) else "too short, or not recorded"
    return f"contention was not measured in {len(blind)} of {len(runs)} runs ({why})"


def _is_short(run: Run) -> bool:
    return run.record.wall_s is not None and run.record.wall_s <= SHORTEST_MEASURABLE_S + 0.05


def claimed_times_text(plan: Plan) -> str | None:
    """Whose times nobody but the arm itself has measured."""
    arms = [ARM_WORDS[letter] for letter in plan.letters if plan.arm(letter).command is not None]
    if not arms:
        return None
    if len(arms) == len(plan.letters):
        who, verb = ("both arms" if len(arms) == len(ARMS) else "all arms"), "are the arms'"
    else:
        who, verb = f"the {' and the '.join(arms)}", "are its" if len(arms) == 1 else "are their"
    return f"the times of {who} {verb} own claim: a perf dump states them, and nothing else measured them"


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
    return (Reason("CONTENTION", detail, "Run it again on a quiet machine."),)


def _disturbers(all_busy: Sequence[Contention], worst: Contention) -> list[str]:
    """Processes that used at least one percent, and a remainder where those of the worst run do not add up."""
    large = [process for busy in all_busy for process in busy.worst if process.cpu_share >= SMALLEST_SHARE_NAMED]
    names = list(dict.fromkeys(process.name for process in sorted(large, key=lambda process: -process.cpu_share)))
    named = sum(process.cpu_share for process in worst.worst if process.cpu_share >= SMALLEST_SHARE_NAMED)
    rest = (worst.other_cpu_share or 0.0) - named
    if rest >= SMALLEST_SHARE_NAMED:
        kind = "ended or short-lived" if len(worst.worst) < PROCESSES_NAMED else "other, ended or short-lived"
        return [*names[:MOST_NAMED], f"{kind} processes {100 * rest:.0f} %"]
    return names[:MOST_NAMED]
