"""Whether a picture shows what its caption claims: rules on pixels, no learned part.

The background is the colour along the border; what differs from it falls into connected regions, one a thing. A
region's shape is the template that overlaps it most, its colour the palette's nearest in CIELAB, its pattern how the
second colour lies in it; one compact spot of another colour inside is a thing of its own. A picture passes when there
are exactly as many things as claimed and some assignment meets every claim. What a caption leaves open is not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from skimage.color import rgb2lab

from training.captions import Claims, ThingClaim
from training.scenes import place_at
from training.templates import half_extent, matching_shapes
from training.vocabulary import CANVAS, COLOUR_NAMES, COLOURS, SIZE_LIMITS, accent_of

Mask = NDArray[np.bool_]

BORDER = 3
STANDS_OUT = 17.0
"""CIELAB distance from the background at which a pixel belongs to a thing."""
SPECK_SHARE = 0.0035
"""Regions below this share of the picture are noise."""
SECOND_COLOUR_SHARE = 0.11
THIN_BRIDGE = 3.0 / 256
"""Of the side: what is thinner than twice this does not join two pieces of a pattern."""
SPOT_SHARE = 0.035
LEAST_OVERLAP = 0.72
"""Of a region and the silhouette of the shape it is taken for, as a share of their union."""
OVERLAPS = (0.72, 0.76, 0.80, 0.84)
"""How strict one can be about outlines; evaluations count what is met at each."""
PALETTE = rgb2lab(np.array([[COLOURS[name] for name in COLOUR_NAMES]], dtype=np.uint8))[0]


@dataclass(frozen=True)
class SeenThing:
    """One thing as found: ``shapes`` are the names that fit, best first; ``radius`` and centre in canvas units.

    ``colours`` are two where a pattern of white and black may be called either.
    """

    shapes: tuple[str, ...]
    colours: tuple[str, ...]
    pattern: str
    x: float
    y: float
    width: float
    height: float
    radius: float

    @property
    def size(self) -> str:
        """The class its radius falls into."""
        if self.radius < SIZE_LIMITS[0]:
            return "small"
        return "medium" if self.radius < SIZE_LIMITS[1] else "large"


@dataclass(frozen=True)
class Seen:
    """A picture as found. ``inside`` holds the pairs (inner, outer) of indices into ``things``."""

    background: str
    things: tuple[SeenThing, ...]
    inside: frozenset[tuple[int, int]]


def check(picture: NDArray[np.uint8], claims: Claims, least_overlap: float = LEAST_OVERLAP) -> list[str]:
    """Why the picture [H, W, 3] does not show what is claimed: one sentence a fault, empty where it does."""
    return faults_of(look(picture, least_overlap), claims)


def met_by_overlap(pictures: Sequence[NDArray[np.uint8]], claims: Sequence[Claims]) -> dict[str, int]:
    """How many pictures show what is claimed of each, by how strict one is about outlines (``OVERLAPS``)."""
    pairs = list(zip(pictures, claims, strict=True))
    return {f"{least:.2f}": sum(not check(picture, claim, least) for picture, claim in pairs) for least in OVERLAPS}


def faults_of(seen: Seen, claims: Claims) -> list[str]:
    """:func:`check` of a picture that was looked at."""
    faults = []
    if claims.background is not None and seen.background != claims.background:
        faults.append(f"the background is {seen.background}, not {claims.background}")
    if len(seen.things) != len(claims.things):
        return [*faults, f"it shows {len(seen.things)} things, not {len(claims.things)}"]
    attempts = [_faults_in_order(seen, order, claims) for order in permutations(range(len(seen.things)))]
    return faults + min(attempts, key=len)


def _faults_in_order(seen: Seen, order: tuple[int, ...], claims: Claims) -> list[str]:
    things = [seen.things[index] for index in order]
    faults = [fault for thing, claim in zip(things, claims.things, strict=True) for fault in _unmet(thing, claim)]
    if claims.relation == "inside":
        holds = (order[0], order[1]) in seen.inside
    else:
        holds = _relation_holds(claims.relation, things) and not seen.inside
    return faults if holds else [*faults, f"the things are not {claims.relation}"]


def _unmet(thing: SeenThing, claim: ThingClaim) -> list[str]:
    faults = []
    if claim.shape not in thing.shapes:
        faults.append(f"a {claim.shape} is a {thing.shapes[0] if thing.shapes else 'blot'}")
    if claim.colour not in thing.colours:
        faults.append(f"the {claim.colour} {claim.shape} is {' or '.join(thing.colours)}")
    for attribute in ("pattern", "size", "place"):
        claimed = getattr(claim, attribute)
        found = place_at(thing.x, thing.y) if attribute == "place" else getattr(thing, attribute)
        if claimed is not None and claimed != found:
            faults.append(f"the {claim.colour} {claim.shape} has {attribute} {found}, not {claimed}")
    return faults


def _relation_holds(relation: str, things: list[SeenThing]) -> bool:
    if relation in ("alone", "any"):
        return True
    is_vertical = relation in ("above", "column")
    return all(_comes_before(first, second, is_vertical) for first, second in pairwise(things))


def _comes_before(first: SeenThing, second: SeenThing, is_vertical: bool) -> bool:
    down, right = second.y - first.y, second.x - first.x
    along, across = (down, right) if is_vertical else (right, down)
    return along > 12 and along > abs(across)


def look(picture: NDArray[np.uint8], least_overlap: float = LEAST_OVERLAP) -> Seen:
    """Everything that the rules find in a picture [H, W, 3]; a shape less like its silhouette has no name."""
    lab = rgb2lab(picture)
    names = np.argmin(((lab[:, :, None] - PALETTE) ** 2).sum(-1), axis=-1)
    frame = np.ones(names.shape, dtype=bool)
    frame[BORDER:-BORDER, BORDER:-BORDER] = False
    background = int(np.bincount(names[frame], minlength=len(COLOUR_NAMES)).argmax())
    paper = np.median(lab[frame & (names == background)], axis=0)
    foreground = ndimage.binary_opening(np.sqrt(((lab - paper) ** 2).sum(-1)) > STANDS_OUT, np.ones((2, 2)))
    regions, count = ndimage.label(foreground, np.ones((3, 3)))
    things: list[SeenThing] = []
    inside = set()
    for number in range(1, count + 1):
        region = regions == number
        if region.mean() < SPECK_SHARE:
            continue
        spot = _spot_inside(region, names, lab)
        if spot is not None:
            things.append(_thing(spot[0], (spot[1],), "plain", least_overlap))
            inside.add((len(things) - 1, len(things)))
        field = region if spot is None else region & ~ndimage.binary_dilation(spot[0], iterations=2)
        things.append(
            _thing(region, *_colours_and_pattern(_core(field), names, COLOUR_NAMES[background]), least_overlap)
        )
    return Seen(COLOUR_NAMES[background], tuple(things), frozenset(inside))


def _thing(region: Mask, colours: tuple[str, ...], pattern: str, least_overlap: float) -> SeenThing:
    rows, columns = np.nonzero(region)
    unit = CANVAS / region.shape[0]
    shapes = matching_shapes(region, least_overlap)
    height, width = np.ptp(rows) + 1.0, np.ptp(columns) + 1.0
    extent = half_extent(shapes[0]) if shapes else 1.0
    return SeenThing(
        shapes=shapes,
        colours=colours,
        pattern=pattern,
        x=float(columns.min() + columns.max() + 1) / 2 * unit,
        y=float(rows.min() + rows.max() + 1) / 2 * unit,
        width=float(width * unit),
        height=float(height * unit),
        radius=float(max(width, height) / 2 * unit / extent),
    )


def _core(region: Mask) -> Mask:
    """The region without its blended edge, or all of it where nothing else is left."""
    core: Mask = ndimage.binary_erosion(region, iterations=2)
    return core if core.sum() > 20 else region


def _colours_and_pattern(core: Mask, names: NDArray[np.intp], background: str) -> tuple[tuple[str, ...], str]:
    counts = np.bincount(names[core], minlength=len(COLOUR_NAMES))
    first, second = (COLOUR_NAMES[int(index)] for index in np.argsort(counts)[::-1][:2])
    if counts[COLOUR_NAMES.index(second)] < SECOND_COLOUR_SHARE * core.sum():
        return (first,), "plain"
    mains = [main for main, accent in ((first, second), (second, first)) if accent == _accent(main, background)]
    if not mains:
        return (first,), f"{second} blots"
    accent = second if mains[0] == first else first
    pattern = _pattern_of(core & (names == COLOUR_NAMES.index(accent)), core)
    return tuple(mains[:1] if pattern == "dotted" else mains), pattern


def _accent(colour: str, background: str) -> str | None:
    try:
        return accent_of(colour, background)
    except ValueError:
        return None


def _pattern_of(accent: Mask, core: Mask) -> str:
    """Stripes reach from side to side; dots leave the rest in one piece; checks do neither.

    Checks touch at their corners, where a soft edge joins what lies between: such bridges are thin, and are cut.
    """
    rows = np.nonzero(core.sum(axis=1) > 6)[0]
    share_by_row = np.array([accent[row].sum() / core[row].sum() for row in rows])
    if np.mean((share_by_row < 0.2) | (share_by_row > 0.8)) > 0.62 and share_by_row.max() > 0.8:
        return "striped"
    cut = max(1, round(THIN_BRIDGE * core.shape[0]))
    pieces, _ = ndimage.label(ndimage.binary_erosion(core & ~accent, iterations=cut))
    sizes = np.bincount(pieces.ravel())[1:]
    return "dotted" if len(sizes) and sizes.max() > 0.7 * sizes.sum() else "checked"


def _spot_inside(region: Mask, names: NDArray[np.intp], lab: NDArray[np.float64]) -> tuple[Mask, str] | None:
    """The one compact spot of another colour well inside a region, with its colour; None where there is none."""
    core = _core(region)
    main = int(np.bincount(names[core], minlength=len(COLOUR_NAMES)).argmax())
    labelled, count = ndimage.label(core & (names != main), np.ones((3, 3)))
    sizes = np.bincount(labelled.ravel())[1:]
    if not count or sizes.max() < SPOT_SHARE * region.sum() or sizes.sum() > 1.35 * sizes.max():
        return None
    spot: Mask = labelled == int(sizes.argmax()) + 1
    if np.any(spot & ~ndimage.binary_erosion(region, iterations=3)):
        return None
    colour = int(np.bincount(names[_core(spot)], minlength=len(COLOUR_NAMES)).argmax())
    # The edge between the two belongs to the nearer one.
    field, ink = (np.median(lab[core & (names == index)], axis=0) for index in (main, colour))
    is_ink = ((lab - ink) ** 2).sum(-1) < ((lab - field) ** 2).sum(-1)
    return ndimage.binary_dilation(spot, iterations=2) & is_ink, COLOUR_NAMES[colour]
