"""Loss curves as JSON and as an SVG without any library."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from training.state import CurvePoint

WIDTH, HEIGHT, LEFT, BOTTOM = 720, 320, 60, 30
INKS = ("#1f5fbf", "#c0392b", "#2e8b57", "#8e44ad", "#b8860b")


def write_curve(folder: Path, stage: str, points: Sequence[CurvePoint]) -> None:
    """``<stage>-curve.json`` and ``<stage>-curve.svg`` in ``folder``; the vertical axis is logarithmic."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [vars(point) for point in points]
    (folder / f"{stage}-curve.json").write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
    (folder / f"{stage}-curve.svg").write_text(_svg(stage, points), encoding="utf-8")


def _svg(stage: str, points: Sequence[CurvePoint]) -> str:
    names = sorted({name for point in points for name in point.losses})
    values = [value for point in points for value in point.losses.values() if value > 0]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="16">{stage}: loss by step</text>',
    ]
    if values:
        low, high = math.log10(min(values)), math.log10(max(values))
        last = max(point.step for point in points) or 1
        for name, ink in zip(names, INKS * len(names), strict=False):
            line = " ".join(
                f"{LEFT + (WIDTH - LEFT - 20) * point.step / last:.1f},{_height(point.losses[name], low, high):.1f}"
                for point in points
                if point.losses.get(name, 0) > 0
            )
            parts.append(f'<polyline fill="none" stroke="{ink}" points="{line}"/>')
            parts.append(f'<text x="{LEFT + 160 + 110 * names.index(name)}" y="16" fill="{ink}">{name}</text>')
        for value in (min(values), max(values)):
            parts.append(f'<text x="4" y="{_height(value, low, high) + 4:.1f}">{value:.3g}</text>')
        parts.append(f'<text x="{WIDTH - 90}" y="{HEIGHT - 8}">step {last}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _height(value: float, low: float, high: float) -> float:
    share = (math.log10(value) - low) / ((high - low) or 1.0)
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - 30)
