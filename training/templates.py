"""The silhouettes that the checker compares regions with: every shape, drawn by the renderer, a little turned."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from skimage.transform import resize

from training.rendering import ANGLE, FIELDS, RADIUS, SHAPE, X, Y, render
from training.vocabulary import CANVAS, SHAPES

Mask = NDArray[np.bool_]

SIDE = 40
ANGLES = (-5.0, 0.0, 5.0)
DRAWN_RADIUS = 90.0
TIE = 0.012
"""Shapes that overlap this much less than the best fit as well."""


def matching_shapes(region: Mask, least: float) -> tuple[str, ...]:
    """The shapes whose silhouette overlaps the region by at least ``least`` of their union, best first, near ties only.

    Size and place do not count, proportions do.
    """
    silhouette = _normalised(region)
    overlaps: dict[str, float] = {}
    for shape, template in _templates():
        overlap = float(np.minimum(silhouette, template).sum() / np.maximum(silhouette, template).sum())
        overlaps[shape] = max(overlaps.get(shape, 0.0), overlap)
    ordered = sorted(overlaps, key=lambda shape: -overlaps[shape])
    best = overlaps[ordered[0]]
    return tuple(shape for shape in ordered if overlaps[shape] >= max(least, best - TIE))


def half_extent(shape: str) -> float:
    """Half the longer side of the shape's bounding box, in radii."""
    return _extents()[shape]


def _normalised(region: Mask) -> NDArray[np.float64]:
    """The region's bounding box in the middle of a square, scaled to SIDE; coverage 0..1."""
    rows, columns = np.nonzero(region)
    box = region[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].astype(np.float64)
    side = max(box.shape)
    square = np.zeros((side, side))
    top, left = (side - box.shape[0]) // 2, (side - box.shape[1]) // 2
    square[top : top + box.shape[0], left : left + box.shape[1]] = box
    scaled: NDArray[np.float64] = resize(square, (SIDE, SIDE), order=1, anti_aliasing=side > SIDE)
    return scaled


@functools.cache
def _drawn() -> tuple[tuple[str, float, Mask], ...]:
    rows = torch.zeros(len(SHAPES) * len(ANGLES), 1, FIELDS)
    labels = []
    for number, (shape, angle) in enumerate((shape, angle) for shape in range(len(SHAPES)) for angle in ANGLES):
        rows[number, 0, [X, Y]] = CANVAS / 2
        rows[number, 0, RADIUS] = DRAWN_RADIUS
        rows[number, 0, SHAPE] = shape
        rows[number, 0, ANGLE] = np.deg2rad(angle)
        rows[number, 0, 6:9] = 1.0
        labels.append((SHAPES[shape], angle))
    pictures = render(torch.zeros(len(rows), 3), rows, int(CANVAS))[:, 0].numpy() > 0
    return tuple((shape, angle, picture) for (shape, angle), picture in zip(labels, pictures, strict=True))


@functools.cache
def _templates() -> tuple[tuple[str, NDArray[np.float64]], ...]:
    return tuple((shape, _normalised(mask)) for shape, _, mask in _drawn())


@functools.cache
def _extents() -> dict[str, float]:
    extents: dict[str, float] = {}
    for shape, angle, mask in _drawn():
        if angle == 0.0:
            rows, columns = np.nonzero(mask)
            extents[shape] = float((max(np.ptp(rows), np.ptp(columns)) + 1) / 2 / DRAWN_RADIUS)
    return extents
