"""What a campaign cannot say, as sentences: random weights, times that an arm claims itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, CellRuns
from fuseproof.schedules.plan import Plan

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis

EMBEDDED = "embedded:"
DUMMY_FLAG = re.compile(r"--load-format[ =]dummy\b")
DUMMY_WEIGHTS = "dummy weights: seeded random, not a trained model; says nothing about quality"
EMBEDDED_WEIGHTS = "embedded model: random dummy weights; says nothing about quality"
NO_QUALITY_EVIDENCE = "not quality evidence: random weights"
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
