"""``report.html``: one file, readable on a phone, with the arms' pictures side by side.

Small pictures are embedded byte for byte, so that the file can travel alone; larger ones, and those beyond a total, are
links into the campaign folder beside it. Its only script moves the edge between two pictures that lie over each other;
it is allowed by its hash, and without it they stand side by side.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from markupsafe import Markup

from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.report.build import build_document
from fuseproof.harness.report.document import Comparison, Details, Part
from fuseproof.harness.report.figure_files import Figures, draw_figures
from fuseproof.harness.report.layout import EVERYTHING
from fuseproof.harness.report.swipe import SWIPE_SCRIPT
from fuseproof.harness.report.templates import environment, url_path

MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
}
LARGEST_EMBEDDED_BYTES = 1_000_000
LARGEST_EMBEDDED_TOTAL_BYTES = 8_000_000


def render_html(analysis: CampaignAnalysis, figures: Figures | None = None) -> str:
    """The report as one HTML file; its tables are never shortened to fit a pull request.

    ``figures`` are drawn here when they are not given.
    """
    drawn = draw_figures(analysis) if figures is None else figures
    document = build_document(analysis, EVERYTHING, drawn)
    script = SWIPE_SCRIPT if any(_has_swipe(section.parts) for section in document.sections) else ""
    text = (
        environment(is_html=True)
        .get_template("report.html.j2")
        .render(
            document=document,
            picture=_embedder(analysis.directory, drawn),
            script=Markup(script),
            script_source=hash_source(script),
        )
    )
    return text + "\n"


def _has_swipe(parts: Iterable[Part]) -> bool:
    return any(
        part.has_swipe if isinstance(part, Comparison) else isinstance(part, Details) and _has_swipe(part.parts)
        for part in parts
    )


def hash_source(script: str) -> Markup:
    """A script's source in a content security policy: nothing but these bytes may run."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return Markup(f"'sha256-{digest}'")


def _embedder(directory: Path, figures: Figures) -> Callable[[str], str]:
    """Turns a picture's path into a data URL while the total allows it, else into a relative link."""
    used = 0
    known: dict[str, str] = {}

    def source(path: str) -> str:
        nonlocal used
        if path not in known:
            budget = LARGEST_EMBEDDED_TOTAL_BYTES - used
            drawn = figures.files.get(path)
            content = _small_picture(directory / path, budget) if drawn is None else _small(drawn, budget)
            used += len(content or b"")
            known[path] = url_path(path) if content is None else _data_url(path, content)
        return known[path]

    return source


def _small(content: bytes, budget_bytes: int) -> bytes | None:
    return content if len(content) <= min(LARGEST_EMBEDDED_BYTES, budget_bytes) else None


def _small_picture(path: Path, budget_bytes: int) -> bytes | None:
    if path.suffix.lower() not in MEDIA_TYPES or not path.is_file():
        return None
    if path.stat().st_size > min(LARGEST_EMBEDDED_BYTES, budget_bytes):
        return None
    return path.read_bytes()


def _data_url(path: str, content: bytes) -> str:
    return f"data:{MEDIA_TYPES[Path(path).suffix.lower()]};base64,{base64.b64encode(content).decode('ascii')}"
