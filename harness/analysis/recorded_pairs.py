"""Comparisons of pictures that were left out when a folder was packed: as its ``report.json`` recorded them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fuseproof.harness.media.clip_comparison import ClipComparison
from fuseproof.harness.media.clip_metrics import FrameDistance
from fuseproof.harness.media.clip_sides import ClipSide
from fuseproof.harness.media.comparing import Comparison
from fuseproof.harness.media.comparison import MediaComparison, Side
from fuseproof.harness.media.metrics import Difference, Metric

NUMBERS_FILE = "report.json"


def recorded_comparison(directory: Path, baseline: str, candidate: str) -> Comparison | None:
    """The comparison of two outputs that the folder's report holds; None where it holds none that can be read.

    ``baseline`` and ``candidate`` are paths relative to the campaign folder. Nothing is recomputed.
    """
    try:
        report = json.loads((directory / NUMBERS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    found = (pair for pair in _pairs(report) if (pair["baseline"], pair["candidate"]) == (baseline, candidate))
    values = next(found, {}).get("comparison")
    try:
        return _comparison(values) if isinstance(values, Mapping) else None
    except (KeyError, TypeError, ValidationError):
        return None


def _pairs(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every compared pair of the report, of whichever arms."""
    if isinstance(value, Mapping):
        if {"baseline", "candidate", "comparison"} <= value.keys():
            yield value
        else:
            for entry in value.values():
                yield from _pairs(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _pairs(entry)


def _comparison(values: Mapping[str, Any]) -> Comparison:
    return _of_videos(values) if values.get("kind") == "video" else _of_pictures(values)


def _of_videos(values: Mapping[str, Any]) -> ClipComparison:
    sides = [TypeAdapter(ClipSide).validate_python(values[name]) for name in ("a", "b")]
    difference = values["worst_difference"]
    ssim, psnr = _metrics(values)
    return ClipComparison(
        a=sides[0],
        b=sides[1],
        equality=values["equality"],
        mismatch=values["mismatch"],
        unseen=tuple(values["unseen"]),
        distances=TypeAdapter(tuple[FrameDistance, ...]).validate_python(values["distances"]),
        values=values["values"],
        data_range=values["data_range"],
        ssim_metric=ssim,
        psnr_metric=psnr,
        worst_frame=values["worst_frame"],
        worst_difference=None if difference is None else TypeAdapter(Difference).validate_python(difference),
        warnings=tuple(values["warnings"]),
    )


def _of_pictures(values: Mapping[str, Any]) -> MediaComparison:
    sides = [TypeAdapter(Side).validate_python(values[name]) for name in ("a", "b")]
    difference = values["difference"]
    ssim, psnr = _metrics(values)
    return MediaComparison(
        sides[0],
        sides[1],
        values["equality"],
        values["mismatch"],
        None if difference is None else TypeAdapter(Difference).validate_python(difference),
        values["data_range"],
        ssim,
        psnr,
        tuple(values["warnings"]),
    )


def _metrics(values: Mapping[str, Any]) -> tuple[Metric, Metric]:
    ssim = {"unavailable": values["ssim_unavailable"], "variant": values["ssim_variant"] or ""}
    psnr = {"unavailable": values["psnr_unavailable"], "is_infinite": values["psnr_is_infinite"]}
    return (
        TypeAdapter(Metric).validate_python({"value": values["ssim"], **ssim}),
        TypeAdapter(Metric).validate_python({"value": values["psnr_db"], **psnr}),
    )
