"""What a campaign cannot say, as sentences: random weights, times that an arm claims itself.

What the weights of a run are is what its dump says (``weights_kind``). Dumps from before it was recorded leave it to be
told from the request: an embedded model was random then.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fuseproof.harness.analysis.editions import WEIGHTS_RECORDED
from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, CellRuns
from fuseproof.harness.perf.dump import PerfDump
from fuseproof.schedules.plan import Plan

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis

EMBEDDED = "embedded:"
DUMMY_FLAG = re.compile(r"--load-format[ =]dummy\b")
DUMMY_WEIGHTS = "dummy weights: seeded random, not a trained model; says nothing about quality"
RANDOM_WEIGHTS = "random weights: seeded, not a trained model; says nothing about quality"
TRAINED_WEIGHTS = "embedded model: trained, and small; how close its pictures stay says little about the released model"
EMBEDDED_WEIGHTS = "embedded model: random dummy weights; says nothing about quality"
"""In the words of the time when every embedded model was random."""
NO_QUALITY_EVIDENCE = "not quality evidence: random weights"
UNSAID = "unsaid"
WEIGHTS_TEXTS = {
    "dummy": DUMMY_WEIGHTS,
    "random": RANDOM_WEIGHTS,
    UNSAID: EMBEDDED_WEIGHTS,
    "trained": TRAINED_WEIGHTS,
}
RANDOM_KINDS = frozenset({"dummy", "random", UNSAID})
MOST_NAMED = 3


def weights_text(analysis: CampaignAnalysis) -> str | None:
    """What the weights of the cells say nothing about; names the cells if only some are concerned."""
    guesses = analysis.edition < WEIGHTS_RECORDED
    kinds = {cell.name: _kinds(cell.runs, guesses=guesses) for cell in analysis.cells}
    found = []
    for kind, text in WEIGHTS_TEXTS.items():
        cells = [name for name, own in kinds.items() if kind in own]
        where = "" if len(cells) == len(kinds) else f"{', '.join(cells[:MOST_NAMED])}: "
        found += [f"{where}{text}"] if cells else []
    return "; ".join(found) or None


def _kinds(runs: CellRuns, *, guesses: bool = False) -> set[str]:
    """What the weights of the cell's runs were. Without any dump its flags tell; of an embedded model they do not, but
    earlier editions took them to (``guesses``).
    """
    dumps = [run.dump for run in runs.runs if run.dump is not None]
    if dumps:
        return {_kind(dump) for dump in dumps}
    is_dummy = DUMMY_FLAG.search(runs.cell.flags) is not None
    is_embedded = guesses and EMBEDDED in runs.cell.flags
    return {kind for kind, is_found in (("dummy", is_dummy), (UNSAID, is_embedded)) if is_found}


def _kind(dump: PerfDump) -> str:
    """``dummy``, ``random``, ``trained`` or ``given``, as the dump says; ``unsaid`` of an embedded model before it did.

    Trained ones that are not the embedded model's are some checkpoint's, like those that it does not call anything.
    """
    kind = dump.config.get("weights_kind")
    is_embedded = (dump.model or "").startswith(EMBEDDED) or dump.config.get("model_source") == "embedded"
    if isinstance(kind, str):
        return "given" if kind == "trained" and not is_embedded else kind
    if dump.config.get("load_format") == "dummy":
        return "dummy"
    return UNSAID if is_embedded else "given"


def no_quality_evidence_text(runs: CellRuns) -> str | None:
    """Why SSIM, PSNR and a close contract say nothing here: they are asked of weights that are no trained model's."""
    qualities = {run.dump.config.get("quality") for run in runs.runs if run.dump is not None}
    is_about_quality = runs.cell.contract.startswith("close") or bool(qualities - {None, "lossless", "exact"})
    if is_about_quality and not RANDOM_KINDS.isdisjoint(_kinds(runs)):
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
