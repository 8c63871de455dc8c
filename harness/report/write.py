"""Write a campaign's report files. The same folder always gives the same bytes, wherever it was copied to."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.analysis.editions import WARM_UP_AND_FIGURES
from fuseproof.harness.analysis.noise_floor import noise_floor
from fuseproof.harness.atomic_files import write_bytes_atomically, write_text_atomically
from fuseproof.harness.campaign.floors import FLOOR_FILE
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.left_out import (
    FIGURES,
    HTML_FILE,
    LEFT_OUT_FILE,
    SUMS_FILE,
    left_out_lines,
    noted_lines,
)
from fuseproof.harness.report.figure_files import Figures, draw_figures, figure_names, foreign_figures, strange_figures
from fuseproof.harness.report.html import render_html
from fuseproof.harness.report.ledger import RAW_RUNS_FILE
from fuseproof.harness.report.markdown import moves_raw_runs, render_markdown, render_raw_runs
from fuseproof.harness.report.privacy import Cleaner
from fuseproof.harness.report.sums import (
    SLOTS,
    changed_evidence,
    checksums,
    evidence_lines,
    refuse_changed_evidence,
)

MARKDOWN_FILE = "report.md"
NUMBERS_FILE = "report.json"


def write_report(campaign_dir: Path | str) -> CampaignAnalysis:
    """Render a campaign folder again: report.md, .html and .json, raw-runs.md if needed, figures/, SHA256SUMS.

    A file whose bytes are already right is left alone, so a complete folder may be read-only. Raises
    :class:`FuseproofError` naming the file that is damaged or cannot be written, or the measurement that is no longer
    what the folder's ``SHA256SUMS`` lists: changed evidence is never signed again. A folder that was packed without
    its outputs or logs is judged and left as it is: signed again, it would no longer know what it lacks.
    """
    campaign = Campaign.open(campaign_dir)
    _refuse_links(campaign.directory)
    evidence = evidence_lines(campaign)
    refuse_changed_evidence(campaign, evidence)
    analysis = analyse(campaign)
    if left_out_lines(campaign.directory):
        return analysis
    figures = draw_figures(analysis)
    for name in foreign_figures(campaign.directory, figures):
        raise FuseproofError(
            f"{campaign.directory / name} is no picture of this report, and {FIGURES} holds nothing else: it would be "
            "signed as one.",
            next_step="Move it out of the folder; then render the report again.",
        )
    rendered = render_files(analysis, figures)
    files: dict[str, str | bytes] = {**figures.files, **rendered}
    for name, content in files.items():
        _write_if_changed(campaign.directory / name, content)
    leftover = [name for name in (RAW_RUNS_FILE, FLOOR_FILE) if name not in rendered]
    for name in leftover + strange_figures(campaign.directory, figures):
        _remove_if_present(campaign.directory / name)
    _write_if_changed(campaign.directory / SUMS_FILE, checksums(campaign, evidence))
    return analysis


def stale_files(analysis: CampaignAnalysis) -> list[str]:
    """Files that are not what the report says, in order of name; nothing is written.

    These are report files that differ from what this campaign renders to, and files whose checksum is missing, wrong,
    or of a file that is gone.
    """
    directory = analysis.directory
    figures = draw_figures(analysis)
    files: dict[str, str | bytes] = {**figures.files, **render_files(analysis, figures)}
    stale = {name for name, content in files.items() if not _holds(directory / name, content)}
    stale |= {*strange_figures(directory, figures), *foreign_figures(directory, figures), *_links(directory)}
    noted = noted_lines(directory)
    if not noted:
        return sorted(stale | {SUMS_FILE})
    left_out = left_out_lines(directory, noted)
    if left_out:
        stale = {name for name in stale if name not in left_out and name not in figures.files}
        left_out |= {LEFT_OUT_FILE: ""}
    present = {line.partition("  ")[2]: line for line in checksums(analysis.campaign).split("\n") if line}
    return sorted(stale | {name for name in {*noted, *present} - {*left_out} if noted.get(name) != present.get(name)})


def changed_measurements(analysis: CampaignAnalysis) -> list[str]:
    """Names below ``slots/`` that are no longer what ``SHA256SUMS`` lists; while there are any, nothing is signed."""
    return [name for name, _ in changed_evidence(analysis.campaign, evidence_lines(analysis.campaign))]


def render_files(analysis: CampaignAnalysis, figures: Figures | None = None) -> dict[str, str]:
    """The report's texts by name; ``raw-runs.md`` only when the markdown report refers to it, ``aa.json`` of an A/A.

    ``figures`` are the pictures that ``report.html`` shows, drawn here when they are not given.
    """
    drawn = draw_figures(analysis) if figures is None else figures
    markdown = render_written_markdown(analysis, drawn)
    files = {MARKDOWN_FILE: markdown, HTML_FILE: render_html(analysis, drawn), NUMBERS_FILE: render_numbers(analysis)}
    floor = noise_floor(analysis)
    if floor is not None:
        files[FLOOR_FILE] = json.dumps(Cleaner().value(floor), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if moves_raw_runs(markdown):
        files[RAW_RUNS_FILE] = render_raw_runs(analysis)
    return files


def render_written_markdown(analysis: CampaignAnalysis, figures: Figures | None = None) -> str:
    """``report.md``, which names the files of ``figures``; they are drawn here when they are not given."""
    drawn = draw_figures(analysis) if figures is None else figures
    named = figure_names(analysis.directory, drawn) if analysis.edition >= WARM_UP_AND_FIGURES else ()
    return render_markdown(analysis, named=named)


def render_numbers(analysis: CampaignAnalysis) -> str:
    """``report.json``: every number, strict JSON."""
    return json.dumps(Cleaner().value(analysis.to_json()), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _refuse_links(directory: Path) -> None:
    """What is written must land in the folder, and what is signed must lie there."""
    for name in _links(directory):
        raise FuseproofError(
            f"{directory / name} is a link or a special file: a report writes nothing through it, and signs nothing "
            "that lies elsewhere.",
            next_step="Put the file itself in its place, or remove it; then render the report again.",
        )


def _links(directory: Path) -> list[str]:
    """Everything outside ``slots/`` that is neither a file nor a folder, by its name in the folder."""
    found = []
    for folder, folders, names in os.walk(directory):
        inside = Path(folder).relative_to(directory)
        for name in (*folders, *names):
            try:
                mode = (Path(folder) / name).lstat().st_mode
            except OSError:
                continue  # gone meanwhile
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                found.append((inside / name).as_posix())
        if folder == str(directory):
            folders[:] = [name for name in folders if name != SLOTS.rstrip("/")]
    return sorted(found)


def _holds(path: Path, content: str | bytes) -> bool:
    wanted = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    try:
        return path.read_bytes() == wanted
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


def _write_if_changed(path: Path, content: str | bytes) -> None:
    if _holds(path, content):
        return
    try:
        if isinstance(content, str):
            write_text_atomically(path, content)
        else:
            write_bytes_atomically(path, content)
    except OSError as error:
        raise FuseproofError(f"{path} could not be written: {error.strerror or error}.") from error
