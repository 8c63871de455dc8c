"""Render the report again, in memory, and compare every number and every line with what lies in the folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.analysis.contradictions import DOUBTED_CODES
from fuseproof.harness.analysis.editions import EDITION, stored_editions
from fuseproof.harness.analysis.output_pairs import ComparedPair
from fuseproof.harness.campaign.floors import FLOOR_FILE
from fuseproof.harness.campaign.folder import RESULT_FILE, Campaign
from fuseproof.harness.campaign.left_out import is_medium, left_out_lines
from fuseproof.harness.media.clip_comparison import ClipComparison
from fuseproof.harness.number_format import count
from fuseproof.harness.report.figure_files import NO_FIGURES, Figures, draw_figures, foreign_figures, strange_figures
from fuseproof.harness.report.ledger import RAW_RUNS_FILE
from fuseproof.harness.report.write import NUMBERS_FILE, render_files
from fuseproof.harness.verification.findings import METRICS, REPORT, Check, Finding, Tally
from fuseproof.harness.verification.lines import line_findings

SLOTS_SOURCE = "campaign.json and the slots"
ROUNDING = 1e-12
"""Relative: another processor or library may round a sum, a logarithm or an SSIM window otherwise, and no further."""
METRICS_OF_A_PAIR = 4
"""SSIM, PSNR, the largest distance, the share of differing values; of a video of each frame, too."""
EARLIER_WORDS = "an earlier version's report, verified in its own words; fuseproof report renders it in today's"
_PAIRS = ".outputs.pairs["


def check_report(campaign: Campaign, own: Sequence[Check]) -> tuple[Check, Check]:
    """The metrics of the pictures, and everything else that the report files say.

    ``own`` are the checks of the slots: where they found a slot wrong, the report is bound to differ, and a note says
    so; a slot that the report doubts and they did not is found here.
    """
    known = {finding.file for check in own for finding in check.findings}
    newest, *earlier = stored_editions(campaign.directory / NUMBERS_FILE)
    metrics, report = _check_edition(campaign, known, newest)
    for edition in earlier:
        if report.findings:
            older = _check_edition(campaign, known, edition)
            metrics, report = older if len(older[1].findings) < len(report.findings) else (metrics, report)
    return metrics, report


def _check_edition(campaign: Campaign, known: Collection[str], edition: int) -> tuple[Check, Check]:
    """Both checks against the report as this edition renders it; ``known`` are the files that are wrong already."""
    try:
        analysis = analyse(campaign, edition=edition)
    except FuseproofError as error:
        problem = f"cannot be recomputed: {error.message.replace(f'{campaign.directory}/', '')}"
        return Check(METRICS, {}), Check(REPORT, {}, (Finding(NUMBERS_FILE, problem),))
    tally = Tally()
    findings: list[Finding] = []
    left_out = left_out_lines(campaign.directory)
    figures = NO_FIGURES if any(map(is_medium, left_out)) else draw_figures(analysis)
    rendered = {name: text for name, text in render_files(analysis, figures).items() if name not in left_out}
    for name, text in sorted(rendered.items(), key=lambda file: file[0] != NUMBERS_FILE):
        findings += _file_findings(campaign.directory / name, text, tally)
    for name in (RAW_RUNS_FILE, FLOOR_FILE):
        if name not in rendered and os.path.lexists(campaign.directory / name):
            findings.append(Finding(name, "belongs to no report of this campaign"))
    findings += _doubted_slots(analysis, known)
    findings += _figure_findings(campaign.directory, figures, tally)
    metrics = tuple(finding for finding in findings if _is_metric(finding))
    rest = tuple(finding for finding in findings if not _is_metric(finding))
    notes = [EARLIER_WORDS] if edition < EDITION else []
    if rounded := tally.counts.pop("rounded", 0):
        notes.append(f"{rounded} numbers differ from ours in the last digits only: another machine's rounding")
    if rest and known:
        notes.append("the report is recomputed from slots that do not agree with themselves, so it is bound to differ")
    return _metrics_check(analysis, metrics, left_out), Check(REPORT, tally.counts, rest, tuple(notes))


def _doubted_slots(analysis: CampaignAnalysis, known: Collection[str]) -> Iterator[Finding]:
    """A report that says CONTRADICTION never stands beside VERIFIED."""
    on_disk = {record.id: record.reason_code for record in analysis.campaign.slots()}
    for cell in analysis.cells:
        for slot in cell.runs.slots:
            is_new = slot.reason_code in DOUBTED_CODES and slot.reason_code != on_disk.get(slot.id)
            if is_new and not any(file.startswith(f"{slot.directory}/") for file in known):
                yield Finding(f"{slot.directory}/{RESULT_FILE}", f"is {slot.reason_code}: {slot.reason}")


def _is_metric(finding: Finding) -> bool:
    return _PAIRS in (finding.place or "") and ".comparison." in (finding.place or "")


def _metrics_check(analysis: CampaignAnalysis, findings: tuple[Finding, ...], left_out: Collection[str] = ()) -> Check:
    every = [pair for cell in analysis.cells for pair in cell.outputs.pairs]
    pairs = [pair for pair in every if not {pair.baseline, pair.candidate} & {*left_out}]
    compared = sum(pair.comparison is not None for pair in pairs)
    omitted = sum(cell.outputs.omitted_pairs for cell in analysis.cells)
    notes = [f"{omitted} further pairs are neither in the report nor compared"] if omitted else []
    recorded = len(every) - len(pairs)
    if recorded:
        notes.append(
            f"metrics of {count(recorded, 'pair')} recorded, not recomputed: the outputs were left out when packed, "
            f"and {NUMBERS_FILE} holds what they were"
        )
    odd = () if findings else tuple(_foreign_sides(analysis, every, left_out))
    frames = sum(len(pair.comparison.distances) for pair in pairs if isinstance(pair.comparison, ClipComparison))
    counts = {"pairs": compared, "metrics": METRICS_OF_A_PAIR * (compared + frames)}
    return Check(METRICS, counts, (*findings, *odd), tuple(notes))


def _foreign_sides(
    analysis: CampaignAnalysis, pairs: Sequence[ComparedPair], left_out: Collection[str]
) -> Iterator[Finding]:
    """Recorded comparisons of other pictures than the slots': their metrics would say nothing about these."""
    hashes = {
        f"{record.directory}/{output.path}": output.file_sha256
        for record in analysis.campaign.slots()
        for output in record.outputs
    }
    for pair in pairs:
        if pair.comparison is None or not {pair.baseline, pair.candidate} & {*left_out}:
            continue
        for path, side in ((pair.baseline, pair.comparison.a), (pair.candidate, pair.comparison.b)):
            if side.file_sha256 != hashes.get(path):
                place = f"the SHA-256 of the compared {path}"
                yield Finding(NUMBERS_FILE, None, place, side.file_sha256, hashes.get(path), RESULT_FILE)


def _figure_findings(directory: Path, figures: Figures, tally: Tally) -> Iterator[Finding]:
    """Pictures that show other pixels than the outputs give; equal pixels may be compressed in any way."""
    for name, content in figures.files.items():
        tally.count("pictures")
        path = directory / name
        if not path.is_file():
            yield Finding(name, "is missing")
        elif path.read_bytes() != content:
            yield Finding(name, "does not show what the outputs in the slots give")
    for name in (*strange_figures(directory, figures), *foreign_figures(directory, figures)):
        yield Finding(name, "belongs to no picture of this report")


def _file_findings(path: Path, expected: str, tally: Tally) -> Iterator[Finding]:
    try:
        stated = path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        yield Finding(path.name, "is missing")
        return
    except OSError as error:
        yield Finding(path.name, f"cannot be read: {error.strerror or error}")
        return
    if path.name == NUMBERS_FILE:
        yield from _numbers_findings(stated, expected, tally)
        return
    tally.count("lines", expected.count("\n"))
    yield from line_findings(path.name, stated, expected, SLOTS_SOURCE)


def _numbers_findings(stated: str, expected: str, tally: Tally) -> Iterator[Finding]:
    """Differences of ``report.json`` by JSON path; by line where it is the spelling that differs."""
    wanted = json.loads(expected)
    tally.count("numbers", _count_numbers(wanted))
    try:
        values = json.loads(stated)
    except (ValueError, RecursionError):
        yield from line_findings(NUMBERS_FILE, stated, expected, SLOTS_SOURCE)
        return
    found = list(_value_findings(values, wanted, "", tally))
    is_spelled_alike = stated == json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    if not found and not (is_spelled_alike and (tally.counts.get("rounded") or stated == expected)):
        found = list(line_findings(NUMBERS_FILE, stated, expected, SLOTS_SOURCE))
    yield from found


def _value_findings(stated: Any, expected: Any, place: str, tally: Tally) -> Iterator[Finding]:
    if isinstance(stated, dict) and isinstance(expected, dict):
        for key in [*expected, *(key for key in stated if key not in expected)]:
            inner = f"{place}.{key}" if place else str(key)
            if key not in stated or key not in expected:
                problem = f"lacks {inner}" if key in expected else f"holds {inner}, which no report has"
                yield Finding(NUMBERS_FILE, problem)
                continue
            yield from _value_findings(stated[key], expected[key], inner, tally)
    elif isinstance(stated, list) and isinstance(expected, list) and len(stated) == len(expected):
        for index, (own, wanted) in enumerate(zip(stated, expected, strict=True)):
            yield from _value_findings(own, wanted, f"{place}[{index}]", tally)
    elif stated != expected or type(stated) is not type(expected):
        if _is_rounding(stated, expected):
            tally.count("rounded")
        else:
            yield Finding(NUMBERS_FILE, None, place, stated, expected, SLOTS_SOURCE)


def _is_rounding(stated: Any, expected: Any) -> bool:
    both = isinstance(stated, float) and isinstance(expected, float)
    return both and math.isclose(stated, expected, rel_tol=ROUNDING, abs_tol=0.0)


def _count_numbers(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_count_numbers, value.values()))
    if isinstance(value, list):
        return sum(map(_count_numbers, value))
    return isinstance(value, int | float) and not isinstance(value, bool)
