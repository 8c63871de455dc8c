"""``before-after.json``, ``.md`` and ``.html``: the comparison of two profiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuseproof.harness.atomic_files import write_text_atomically
from fuseproof.harness.profiles.comparison import ProfileComparison
from fuseproof.harness.profiles.comparison_build import EVERYTHING, MARKDOWN, build_comparison
from fuseproof.harness.profiles.html import render_page
from fuseproof.harness.profiles.timings import Timings
from fuseproof.harness.profiles.writing import as_json
from fuseproof.harness.report.markdown import render_document

STEM = "before-after"


def write_comparison(
    folder: Path, comparison: ProfileComparison, timings: Timings | None, values: Mapping[str, Any]
) -> None:
    """Write the three files; ``values`` are the comparison's as strict JSON."""
    write_text_atomically(folder / f"{STEM}.json", as_json(values))
    write_text_atomically(folder / f"{STEM}.md", render_document(build_comparison(comparison, timings, MARKDOWN)))
    write_text_atomically(folder / f"{STEM}.html", render_page(build_comparison(comparison, timings, EVERYTHING)))
