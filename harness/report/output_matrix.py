"""Every prompt and seed of a cell in a row: how many outputs equal the baseline's first, how far the worst one is."""

from __future__ import annotations

from typing import Any

from fuseproof.harness.analysis.campaign import CellAnalysis
from fuseproof.harness.analysis.output_pairs import ComparedPair
from fuseproof.harness.analysis.runs import Run
from fuseproof.harness.analysis.sentences import psnr_text, ssim_text
from fuseproof.harness.media.comparison import distance_text
from fuseproof.harness.number_format import MISSING, count, shortened
from fuseproof.harness.report.document import Code, Details, Paragraph, Part, Strong, Table, Text

MOST_ROWS = 64
LONGEST_PROMPT = 60


def output_matrix(cell: CellAnalysis) -> list[Part]:
    """A folded table of the outputs by request; nothing where there is one output and it is the same everywhere."""
    runs = cell.runs.runs
    requests = min((len(run.record.outputs) for run in runs), default=0)
    if requests == 0 or (requests == 1 and not cell.outputs.pairs):
        return []
    arms = sorted({str(run.record.arm) for run in runs})
    head = ("Output", "Prompt", "Seed", *(f"{arm} equal" for arm in arms), "SSIM", "PSNR", "max |Δ|", "")
    worst = cell.outputs.worst
    shown = list(range(requests))[:MOST_ROWS]
    if worst is not None and worst.request not in shown:
        shown[-1] = worst.request
    rows = tuple(_row(cell, index, arms) for index in shown)
    parts: list[Part] = [Table(head, rows, numeric=range(3 + len(arms), 6 + len(arms)))]
    parts.append(
        Paragraph("Equal: outputs with the pixels of the first baseline run's. Distances are of the worst pair.")
    )
    if requests > len(shown):
        parts.append(Paragraph(f"{count(requests - len(shown), 'more output')} in report.json."))
    return [Details(f"Outputs of {cell.name} by prompt and seed", tuple(parts))]


def _row(cell: CellAnalysis, index: int, arms: list[str]) -> tuple[Text, ...]:
    first = cell.runs.of_arm("A")[0]
    wanted = _key(first, index)
    equal = [
        f"{sum(_key(run, index) == wanted for run in own)} of {len(own)}"
        for arm in arms
        if (own := [run for run in cell.runs.runs if run.record.arm == arm])
    ]
    pair = next((pair for pair in cell.outputs.pairs if pair.request == index), None)
    mark: Text = Strong("worst case") if pair is not None and pair is cell.outputs.worst else ""
    return (str(index + 1), _prompt(first, index), _seed(first, index), *equal, *_distances(pair), mark)


def _key(run: Run, index: int) -> str:
    output = run.record.outputs[index]
    return output.pixels_sha256 or output.file_sha256


def _prompt(run: Run, index: int) -> Text:
    prompts = run.dump.prompts if run.dump else ()
    return Code(shortened(prompts[index], LONGEST_PROMPT)) if index < len(prompts) else MISSING


def _seed(run: Run, index: int) -> str:
    """The request's own seed, else that of the whole run."""
    if run.dump is None:
        return MISSING
    own: Any = run.dump.requests[index].get("seed") if index < len(run.dump.requests) else None
    found = run.dump.config.get("seed") if own is None else own
    return str(found) if isinstance(found, int) else MISSING


def _distances(pair: ComparedPair | None) -> tuple[str, str, str]:
    if pair is None:
        return ("", "", "")
    comparison = pair.comparison
    if comparison is None or comparison.mismatch is not None:
        return (MISSING, MISSING, MISSING)
    return (ssim_text(pair), psnr_text(pair), distance_text(comparison.max_abs))
