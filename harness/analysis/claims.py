"""What a campaign lets anybody claim, workload by workload, and why each other thing is not claimed.

A speed is claimed only with a clear word on the primary timer, outputs that keep their contract, every planned block
and whatever the plan asks of every block. Memory is claimed where allocated and reserved agree, outputs where they were
compared. Nothing that was not measured here is claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fuseproof.harness.analysis.audit import audit
from fuseproof.harness.analysis.caveats import no_quality_evidence_text
from fuseproof.harness.analysis.checked_calls import unprotected_text
from fuseproof.harness.analysis.editions import WARM_UP_AND_FIGURES
from fuseproof.harness.analysis.effects import interval_name, interval_text, percent_text, saved_text
from fuseproof.harness.analysis.metrics import MetricResult
from fuseproof.harness.analysis.output_check import LEVEL_TITLES
from fuseproof.harness.campaign.origin import NOT_IMPORTED
from fuseproof.harness.number_format import count, latency_change, shortened
from fuseproof.harness.statistics.reasons import no_point_estimate
from fuseproof.harness.statistics.verdict import Word

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis

CLEAR_WORDS = frozenset({Word.FASTER, Word.SLOWER, Word.SAME})
NOT_THE_FAST_PATH = "FASTPATH_NOT_TAKEN"
SAME_PROGRAM = "SAME_PROGRAM"
LONGEST_BECAUSE = 240
MOST_SITES = 6


@dataclass(frozen=True)
class Claim:
    """One workload. ``because`` is empty exactly when it is claimed; every entry is a part of a sentence."""

    name: str
    claimed: tuple[str, ...]
    because: tuple[str, ...]
    not_claimed: tuple[str, ...]
    """What beside the headline is not claimed, each with its reason."""
    caveats: tuple[str, ...]
    """Codes of warnings that a reader of the claim must look up."""

    @property
    def is_claimed(self) -> bool:
        return not self.because

    @property
    def text(self) -> str:
        """What follows the workload's name and ``claimed`` or ``not claimed``."""
        lead = f": {'; '.join(self.claimed)}." if self.is_claimed else f", because {'; '.join(self.because)}."
        rest = f" Not claimed: {'; '.join(self.not_claimed)}." if self.not_claimed and self.is_claimed else ""
        return f"{lead}{rest}" + (f" Read with it: {', '.join(self.caveats)}." if self.caveats else "")

    @property
    def word(self) -> str:
        return "claimed" if self.is_claimed else "not claimed"

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return asdict(self) | {"is_claimed": self.is_claimed}


def claims(analysis: CampaignAnalysis) -> tuple[Claim, ...]:
    """One claim a cell, in the order of the plan."""
    return tuple(_claim(analysis, cell) for cell in analysis.cells)


def closing_lines(analysis: CampaignAnalysis) -> list[str]:
    """What is claimed and what is not, a line a cell, then the whole campaign and the account of its records."""
    found = claims(analysis)
    records = audit(analysis)
    told = [claim for claim in found if analysis.plan.ablation is None or not claim.is_claimed]
    lines = [f"{claim.word}: {claim.name}{claim.text}" for claim in told]
    lines += [whole_campaign_text(analysis, found)] if len(found) > 1 or analysis.plan.qualify else []
    return [*lines, records.line + (f"; blocks {records.block_line}" if records.block_line else "")]


def unclaimed_texts(analysis: CampaignAnalysis) -> list[tuple[str, str]]:
    """Cells with a clear word that is not claimed all the same, each with why: a Summary must not stop at the word."""
    if analysis.is_self_comparison:
        return []
    found = zip(analysis.cells, claims(analysis), strict=True)
    return [
        (claim.name, f"not claimed, because {'; '.join(claim.because)}")
        for cell, claim in found
        if cell.word in CLEAR_WORDS and not claim.is_claimed
    ]


def claim_noun(analysis: CampaignAnalysis) -> str:
    """What a claim is about."""
    return "comparison" if analysis.has_several_candidates else "workload"


def whole_campaign_text(analysis: CampaignAnalysis, found: Sequence[Claim]) -> str:
    """How the campaign as a whole fared: an accepted workload does not make the others pass."""
    claimed = sum(claim.is_claimed for claim in found)
    parts = [f"{claimed} of {count(len(found), claim_noun(analysis))} claimed"]
    asked = [cell for cell in analysis.cells if cell.qualification.is_asked]
    if asked:
        passed = sum(cell.qualification.is_qualified for cell in asked)
        required = ", ".join(analysis.plan.qualify)
        word = "qualified" if passed == len(asked) else "NOT qualified"
        parts.append(f"{word}: {passed} of {len(asked)} reach {required} in every block")
    code = analysis.exit_code()
    parts += [f"exit code {code}"] if code else []
    return f"Whole campaign: {'; '.join(parts)}."


def scope_text(analysis: CampaignAnalysis) -> str | None:
    """Fast paths that nothing here has timed, and whether the gate protects them; None where none was mounted.

    Protected are only those of a candidate whose gate enforced in every run.
    """
    ran: dict[str, None] = {}
    idle: dict[str, None] = {}
    for cell in analysis.cells:
        for site in cell.fastpaths.sites:
            if site.candidate is None or site.candidate.was_switched_off:
                continue
            (ran if site.candidate.calls_fused else idle)[site.site] = None
    idle = {name: None for name in idle if name not in ran}
    if not ran and not idle:
        return None
    parts = ["other models and sizes at the sites that ran"] if ran else []
    parts += [f"{_names(list(idle))}, which made no fused call (declined, or not reached)"] if idle else []
    lax = dict.fromkeys(text for cell in analysis.cells if (text := unprotected_text(cell.runs)) is not None)
    if lax:
        return f"Not benchmarked, and not protected by the gate ({'; '.join(lax)}): {'; '.join(parts)}."
    return f"Protected by the gate, not benchmarked: {'; '.join(parts)}."


def _names(names: list[str]) -> str:
    more = f" and {len(names) - MOST_SITES} more" if len(names) > MOST_SITES else ""
    return ", ".join(names[:MOST_SITES]) + more


def _claim(analysis: CampaignAnalysis, cell: CellAnalysis) -> Claim:
    because = tuple(shortened(text.rstrip("."), LONGEST_BECAUSE) for text in _obstacles(analysis, cell))
    claimed = () if because else tuple(_claimed(cell))
    beside = (*cell.verdict.reasons[1:], *cell.verdict.warnings, *cell.warnings)
    caveats = dict.fromkeys(reason.code for reason in beside)
    imported = analysis.campaign.origin is not None
    not_observed = ("order, isolation and telemetry: recorded elsewhere, not observed here",) if imported else ()
    unqualified = (cell.qualification.sentence,) if _fails_qualification(cell) else ()
    not_claimed = () if because else (*_not_claimed(cell), *unqualified, *not_observed)
    return Claim(cell.name, claimed, because, not_claimed, tuple(caveats))


def _obstacles(analysis: CampaignAnalysis, cell: CellAnalysis) -> list[str]:
    """Everything that forbids the workload's claim, the gravest first."""
    found = []
    if not cell.outputs.keeps_contract:
        found.append(f"the outputs do not keep the contract {cell.outputs.contract}")
    if cell.word not in CLEAR_WORDS:
        reason = cell.verdict.headline
        text = cell.word.value if reason is None else f"{cell.word.value} ({reason.code}): {reason.detail}"
        found.insert(len(found) if cell.edition >= WARM_UP_AND_FIGURES else 0, text)
    if cell.word is Word.FASTER and _fails_qualification(cell):
        found.append(cell.qualification.sentence.removeprefix("not qualified, because "))
    if cell.runs.lost and cell.word in CLEAR_WORDS:
        found.append(_lost_text(cell))
    if cell.runs.omitted:
        found.append("the reader chose some of the blocks")
    codes = {warning.code: warning for warning in cell.warnings}
    if NOT_THE_FAST_PATH in codes:
        found.append(f"{NOT_THE_FAST_PATH}: {codes[NOT_THE_FAST_PATH].detail}")
    if analysis.is_self_comparison:
        found.append("both arms are the same command (A/A)")
    elif SAME_PROGRAM in codes:
        found.append(f"{SAME_PROGRAM}: {codes[SAME_PROGRAM].detail}")
    return found


def _lost_text(cell: CellAnalysis) -> str:
    """How many planned blocks are missing; of imported files only the numbers say that there was one more."""
    given = {slot.block for slot in cell.runs.slots if slot.reason_code != NOT_IMPORTED}
    skipped = [lost.number for lost in cell.runs.lost if lost.number not in given]
    is_imported = any(slot.reason_code == NOT_IMPORTED for slot in cell.runs.slots)
    if not is_imported or len(skipped) < len(cell.runs.lost):
        return f"only {len(cell.runs.blocks)} of {cell.runs.planned_blocks} planned blocks are complete"
    which = f"block {skipped[0]} is" if len(skipped) == 1 else f"blocks {', '.join(map(str, skipped))} are"
    return f"{which} not among the files given, though later ones are, and nothing says why"


def _fails_qualification(cell: CellAnalysis) -> bool:
    """Whether every block was to show a speed-up, and one did not; SAME and SLOWER are claimed all the same."""
    return cell.qualification.is_asked and not cell.qualification.is_qualified and bool(cell.metrics)


def _claimed(cell: CellAnalysis) -> list[str]:
    found = [speed_text(cell)]
    if cell.qualification.is_qualified:
        found.append(cell.qualification.sentence)
    if cell.outputs.decided_by is not None:
        found.append(_outputs_text(cell))
    memory = cell.memory.agreement
    if memory in ("less", "more", "unchanged"):
        found.append(f"{memory} memory" if memory != "more" else "more memory (a cost)")
    return [text for text in found if text]


def speed_text(cell: CellAnalysis) -> str:
    """``Worker E2E −5.80 % latency (1.062× faster), reduction [5.29, 6.32] % (95 % interval)``; SAME says what is
    excluded. The interval is the one that the verdict rests on, with its level and what has widened it.
    """
    comparison, primary = cell.verdict.comparison, cell.primary
    if comparison is None or primary is None:
        return ""
    bounds = f"[{interval_text(comparison, comparison.interval_used).strip('[]')}] % ({interval_name(comparison)})"
    if cell.word is Word.SAME:
        return f"{primary.title} SAME: no difference of {percent_text(comparison.min_effect)} or more, {bounds}"
    if no_point_estimate(cell.verdict.warnings) is not None:
        return f"{primary.title} {cell.word.value}, reduction {bounds} (the size is not claimed)"
    if cell.is_ablation:
        return f"{primary.title} {saved_text(cell.verdict)}"
    return f"{primary.title} {latency_change(comparison.reduction)}, reduction {bounds}"


def _outputs_text(cell: CellAnalysis) -> str:
    outputs = cell.outputs
    if outputs.status == "identical" and outputs.decided_by is not None:
        return f"outputs identical in {LEVEL_TITLES[outputs.decided_by]}"
    if outputs.status == "pixels identical":
        return "outputs identical in decoded pixels"
    says_nothing = outputs.accepts_anything or no_quality_evidence_text(cell.runs)
    return "" if says_nothing else f"outputs keep {outputs.contract}"


def _not_claimed(cell: CellAnalysis) -> list[str]:
    found = []
    others = [metric for metric in cell.metrics if not metric.is_primary and metric.is_judged]
    named = {timer.timer for timer in cell.qualification.timers} if cell.qualification.is_qualified else set()
    descriptive = [metric for metric in others if metric.name not in named]
    if descriptive:
        timers = ", ".join(f"{metric.title} ({_word(metric)})" for metric in descriptive)
        found.append(f"{timers}: descriptive")
    if cell.outputs.decided_by is None:
        found.append("outputs: nothing was compared")
    else:
        if cell.outputs.accepts_anything and cell.outputs.status == "different":
            found.append(f"outputs: the contract {cell.outputs.contract} accepts any picture")
        evidence = no_quality_evidence_text(cell.runs)
        found += [f"quality: {evidence}"] if evidence else []
    if cell.memory.agreement == "mixed":
        found.append("memory: allocated and reserved do not agree")
    elif cell.memory.agreement == "unknown":
        found.append("memory: not recorded in every run")
    return found


def _word(metric: MetricResult) -> str:
    headline = metric.verdict.headline if metric.verdict is not None else None
    return metric.word if headline is None else f"{metric.word}, {headline.code}"
