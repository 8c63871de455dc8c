"""The pictures of a report as files below ``figures/``: which cells get them, and the bytes of each.

A picture is the same when its pixels are the same. A file in the folder that already shows what would be drawn keeps
its bytes, because two machines may compress equal pixels otherwise; everything else is replaced.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
from fuseproof.harness.campaign.left_out import is_medium, left_out_lines
from fuseproof.harness.report.canvas import Pixels, png
from fuseproof.harness.report.cell_pictures import FIGURES, cell_pictures
from fuseproof.harness.report.document import Part
from fuseproof.harness.report.overview import notable_cells
from fuseproof.harness.report.shown_outputs import OutputReader

MOST_CELLS = 6
LARGEST_FILE_BYTES = 32 * 1024**2
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_UNFINISHED = re.compile(r"\.fuseproof-.*\.tmp")
_OWN_NAME = re.compile(r".+-(?:sheet(?:-[A-Z])?|difference-[A-Z]|pair-[A-Z]-[A-Z])\.png")


@dataclass(frozen=True)
class Figures:
    """``parts`` by cell, in the order of the report; ``files`` by path relative to the campaign folder."""

    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


NO_FIGURES = Figures()


def draw_figures(analysis: CampaignAnalysis) -> Figures:
    """Draw the pictures of the cells that need them most; the same folder always gives the same pixels."""
    reader = OutputReader(analysis.directory)
    parts: dict[str, tuple[Part, ...]] = {}
    files: dict[str, bytes] = {}
    for cell in pictured_cells(analysis):
        pictures = cell_pictures(cell, reader)
        reader.forget()
        if pictures.parts:
            parts[cell.name] = pictures.parts
        files |= {path: _content(analysis.directory / path, pixels) for path, pixels in pictures.drawn.items()}
    return Figures(parts, files)


def figure_names(directory: Path, figures: Figures) -> tuple[str, ...]:
    """The paths below ``figures/`` of what was drawn, in order of name; of a packed folder that left them out, too.

    Where outputs are gone nothing can be drawn, and ``SHA256SUMS`` still lists what was.
    """
    left_out = left_out_lines(directory)
    signed = [name for name in left_out if name.startswith(FIGURES)] if any(map(is_medium, left_out)) else []
    return tuple(sorted({*figures.files, *signed}))


def pictured_cells(analysis: CampaignAnalysis) -> list[CellAnalysis]:
    """At most :data:`MOST_CELLS` cells with outputs: those whose outputs differ first, then in the report's order."""
    compared = [cell for cell in notable_cells(analysis) if cell.outputs.decided_by is not None]
    return sorted(compared, key=lambda cell: cell.outputs.status != "different")[:MOST_CELLS]


def foreign_figures(directory: Path, figures: Figures) -> list[str]:
    """Everything below ``figures/`` that is no picture of this report and carries no name of one."""
    folder = directory / FIGURES
    if folder.is_symlink() or not folder.is_dir():
        return []
    own = {*figures.files, *strange_figures(directory, figures)}
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    names = (path.relative_to(directory).as_posix() for path in found if not _UNFINISHED.fullmatch(path.name))
    return sorted(name for name in names if name not in own)


def strange_figures(directory: Path, figures: Figures) -> list[str]:
    """Files below ``figures/`` that carry the name of a report's picture and belong to no picture of this one."""
    folder = directory / FIGURES
    if not folder.is_dir():
        return []
    names = sorted(path.name for path in folder.iterdir() if _OWN_NAME.fullmatch(path.name))
    return [f"{FIGURES}{name}" for name in names if f"{FIGURES}{name}" not in figures.files]


def _content(path: Path, pixels: Pixels) -> bytes:
    present = _present(path)
    return present if present is not None and _shows(present, pixels) else png(pixels)


def _present(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= LARGEST_FILE_BYTES else None
    except OSError:
        return None


def _shows(content: bytes, pixels: Pixels) -> bool:
    """Whether a PNG holds exactly these pixels; the size is looked at before anything is decoded."""
    height, width = pixels.shape[:2]
    if content[:8] != _SIGNATURE or content[16:24] != struct.pack(">II", width, height):
        return False
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            if image.size != (width, height) or image.info:
                return False
            return bool(np.array_equal(np.asarray(image.convert("RGB")), pixels))
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError, struct.error, zlib.error):
        return False
