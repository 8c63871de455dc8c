"""``report.html``: one file without scripts, readable on a phone, with the arms' pictures side by side.

Small pictures are embedded byte for byte, so that the file can travel alone; larger ones, and those beyond a total, are
links into the campaign folder beside it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.report.build import build_document
from fuseproof.harness.report.layout import EVERYTHING
from fuseproof.harness.report.templates import environment, url_path

MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
}
LARGEST_EMBEDDED_BYTES = 400_000
LARGEST_EMBEDDED_TOTAL_BYTES = 4_000_000


def render_html(analysis: CampaignAnalysis) -> str:
    """The report as one HTML file; its tables are never shortened to fit a pull request."""
    template = environment(is_html=True).get_template("report.html.j2")
    return template.render(document=build_document(analysis, EVERYTHING), picture=_embedder(analysis.directory)) + "\n"


def _embedder(directory: Path) -> Callable[[str], str]:
    """Turns a picture's path into a data URL while the total allows it, else into a relative link."""
    used = 0
    known: dict[str, str] = {}

    def source(path: str) -> str:
        nonlocal used
        if path not in known:
            content = _small_picture(directory / path, LARGEST_EMBEDDED_TOTAL_BYTES - used)
            used += len(content or b"")
            known[path] = url_path(path) if content is None else _data_url(path, content)
        return known[path]

    return source


def _small_picture(path: Path, budget_bytes: int) -> bytes | None:
    if path.suffix.lower() not in MEDIA_TYPES or not path.is_file():
        return None
    if path.stat().st_size > min(LARGEST_EMBEDDED_BYTES, budget_bytes):
        return None
    return path.read_bytes()


def _data_url(path: str, content: bytes) -> str:
    return f"data:{MEDIA_TYPES[Path(path).suffix.lower()]};base64,{base64.b64encode(content).decode('ascii')}"
