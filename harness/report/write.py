"""Write a campaign's report files. The same folder always gives the same bytes, wherever it was copied to."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.analysis.noise_floor import noise_floor
from fuseproof.harness.atomic_files import write_text_atomically
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report.html import render_html
from fuseproof.harness.report.ledger import RAW_RUNS_FILE
from fuseproof.harness.report.markdown import moves_raw_runs, render_markdown, render_raw_runs
from fuseproof.harness.report.privacy import Cleaner
from fuseproof.harness.report.sums import (
    SUMS_FILE,
    changed_evidence,
    checksums,
    evidence_lines,
    noted_lines,
    refuse_changed_evidence,
)

MARKDOWN_FILE = "report.md"
HTML_FILE = "report.html"
NUMBERS_FILE = "report.json"
FLOOR_FILE = "aa.json"
"""The noise floor that an A/A campaign has measured."""


def write_report(campaign_dir: Path | str) -> CampaignAnalysis:
    """Render a campaign folder again: report.md, report.html, report.json, raw-runs.md if needed, SHA256SUMS.

    A file whose bytes are already right is left alone, so a complete folder may be read-only. Raises
    :class:`FuseproofError` naming the file that is damaged or cannot be written, or the measurement that is no longer
    what the folder's ``SHA256SUMS`` lists: changed evidence is never signed again.
    """
    campaign = Campaign.open(campaign_dir)
    evidence = evidence_lines(campaign)
    refuse_changed_evidence(campaign, evidence)
    analysis = analyse(campaign)
    rendered = render_files(analysis)
    for name, text in rendered.items():
        _write_if_changed(campaign.directory / name, text)
    if RAW_RUNS_FILE not in rendered:
        _remove_if_present(campaign.directory / RAW_RUNS_FILE)
    _write_if_changed(campaign.directory / SUMS_FILE, checksums(campaign, evidence))
    return analysis


def stale_files(analysis: CampaignAnalysis) -> list[str]:
    """Files that are not what the report says, in order of name; nothing is written.

    These are report files that differ from what this campaign renders to, and files whose checksum is missing, wrong,
    or of a file that is gone.
    """
    directory = analysis.directory
    stale = {name for name, text in render_files(analysis).items() if not _holds(directory / name, text)}
    noted = noted_lines(directory)
    if not noted:
        return sorted(stale | {SUMS_FILE})
    present = {line.partition("  ")[2]: line for line in checksums(analysis.campaign).split("\n") if line}
    return sorted(stale | {name for name in {*noted, *present} if noted.get(name) != present.get(name)})


def changed_measurements(analysis: CampaignAnalysis) -> list[str]:
    """Names below ``slots/`` that are no longer what ``SHA256SUMS`` lists; while there are any, nothing is signed."""
    return [name for name, _ in changed_evidence(analysis.campaign, evidence_lines(analysis.campaign))]


def render_files(analysis: CampaignAnalysis) -> dict[str, str]:
    """The report files by name; ``raw-runs.md`` only when the markdown report refers to it, ``aa.json`` of an A/A."""
    markdown = render_markdown(analysis)
    files = {MARKDOWN_FILE: markdown, HTML_FILE: render_html(analysis), NUMBERS_FILE: render_numbers(analysis)}
    floor = noise_floor(analysis)
    if floor is not None:
        files[FLOOR_FILE] = json.dumps(Cleaner().value(floor), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if moves_raw_runs(markdown):
        files[RAW_RUNS_FILE] = render_raw_runs(analysis)
    return files


def render_numbers(analysis: CampaignAnalysis) -> str:
    """``report.json``: every number, strict JSON."""
    return json.dumps(Cleaner().value(analysis.to_json()), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode("utf-8", "surrogateescape")
    except OSError:
        return False


def _remove_if_present(path: Path) -> None:
    """Nothing is asked of a file system, a read-only one least of all, when there is nothing to remove."""
    if not os.path.lexists(path):
        return
    try:
        path.unlink()
    except OSError as error:
        raise FuseproofError(
            f"{path} is of an older report and cannot be removed: {error.strerror or error}.",
            next_step="Make the folder writable, or render a copy of it.",
        ) from error


def _write_if_changed(path: Path, text: str) -> None:
    if _holds(path, text):
        return
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise FuseproofError(f"{path} could not be written: {error.strerror or error}.") from error
