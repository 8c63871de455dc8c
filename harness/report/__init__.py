"""Reports of a campaign: markdown for a pull request, one HTML file, strict numbers, checksums."""

from __future__ import annotations

from fuseproof.harness.report.html import render_html
from fuseproof.harness.report.junit import render_junit
from fuseproof.harness.report.markdown import render_markdown, render_raw_runs
from fuseproof.harness.report.side_by_side import pair_lines, read_pair, render_pair
from fuseproof.harness.report.slot_rows import render_csv
from fuseproof.harness.report.write import (
    changed_measurements,
    render_numbers,
    render_written_markdown,
    stale_files,
    write_report,
)

__all__ = [
    "changed_measurements",
    "pair_lines",
    "read_pair",
    "render_csv",
    "render_html",
    "render_junit",
    "render_markdown",
    "render_numbers",
    "render_pair",
    "render_raw_runs",
    "render_written_markdown",
    "stale_files",
    "write_report",
]
