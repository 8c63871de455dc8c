"""Write a campaign's report files. The same folder always gives the same bytes, wherever it was copied to."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.media.comparison import file_sha256
from fuseproof.harness.perf.dump import write_text_atomically
from fuseproof.harness.report.html import render_html
from fuseproof.harness.report.ledger import RAW_RUNS_FILE
from fuseproof.harness.report.markdown import moves_raw_runs, render_markdown, render_raw_runs
from fuseproof.harness.report.privacy import Cleaner

MARKDOWN_FILE = "report.md"
HTML_FILE = "report.html"
NUMBERS_FILE = "report.json"
SUMS_FILE = "SHA256SUMS"
_TEMPORARY = re.compile(r"\.fuseproof-.*\.tmp")


def write_report(campaign_dir: Path | str) -> CampaignAnalysis:
    """Render a campaign folder again: report.md, report.html, report.json, raw-runs.md if needed, SHA256SUMS.

    A file whose bytes are already right is left alone, so a complete folder may be read-only. Raises
    :class:`FuseproofError` naming the file that is damaged or cannot be written.
    """
    campaign = Campaign.open(campaign_dir)
    analysis = analyse(campaign)
    rendered = render_files(analysis)
    for name, text in rendered.items():
        _write_if_changed(campaign.directory / name, text)
    if RAW_RUNS_FILE not in rendered:
        (campaign.directory / RAW_RUNS_FILE).unlink(missing_ok=True)
    _write_if_changed(campaign.directory / SUMS_FILE, checksums(campaign.directory))
    return analysis


def stale_files(analysis: CampaignAnalysis) -> list[str]:
    """Files that are not what the report says, in order of name; nothing is written.

    These are report files that differ from what this campaign renders to, and files whose checksum is missing, wrong,
    or of a file that is gone.
    """
    directory = analysis.directory
    stale = {name for name, text in render_files(analysis).items() if not _holds(directory / name, text)}
    try:
        noted = _entries((directory / SUMS_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return sorted(stale | {SUMS_FILE})
    present = _entries(checksums(directory))
    return sorted(stale | {name for _, name in noted ^ present})


def _entries(sums: str) -> set[tuple[str, str]]:
    """The (hash, name) pairs of a checksum file."""
    return {(hash_, name) for hash_, _, name in (line.partition("  ") for line in sums.splitlines())}


def render_files(analysis: CampaignAnalysis) -> dict[str, str]:
    """The report files by name; ``raw-runs.md`` only when the markdown report refers to it."""
    markdown = render_markdown(analysis)
    files = {MARKDOWN_FILE: markdown, HTML_FILE: render_html(analysis), NUMBERS_FILE: render_numbers(analysis)}
    if moves_raw_runs(markdown):
        files[RAW_RUNS_FILE] = render_raw_runs(analysis)
    return files


def render_numbers(analysis: CampaignAnalysis) -> str:
    """``report.json``: every number, strict JSON."""
    return json.dumps(Cleaner().value(analysis.to_json()), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def checksums(directory: Path) -> str:
    """``SHA256SUMS`` of a folder: every file except itself and our temporary files, sorted by path."""
    named = sorted((path.relative_to(directory).as_posix(), path) for path in _files(directory))
    return "".join(_checksum_line(file_sha256(path), name) for name, path in named)


def _checksum_line(hash_: str, name: str) -> str:
    """One line as ``sha256sum`` writes it: a name with a backslash or a line break is escaped and marked in front."""
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    printable = escaped.encode("utf-8", "backslashreplace").decode("utf-8")
    return f"{'' if escaped == name else chr(92)}{hash_}  {printable}\n"


def _files(directory: Path) -> list[Path]:
    found = []
    for folder, folders, names in os.walk(directory):
        folders.sort()
        found += [Path(folder) / name for name in names if not _TEMPORARY.fullmatch(name)]
    return [path for path in found if path != directory / SUMS_FILE and path.is_file()]


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode("utf-8")
    except OSError:
        return False


def _write_if_changed(path: Path, text: str) -> None:
    if _holds(path, text):
        return
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise FuseproofError(f"{path} could not be written: {error.strerror or error}.") from error
