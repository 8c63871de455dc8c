"""Scenes: what a picture shows, drawn from a seed. Torch-free, so that worker processes start at once.

A caption that says nothing of it means the ordinary: medium things, side by side in the middle, on white. What a
caption leaves open is little, a jitter of places, sizes, angles and colours: a small model that has to choose between
nine places for a thing draws none, or two.

A scene is fixed by its seed and index alone. One in ten combinations (of shapes, colours, patterns and relation) is
held out by a hash of its name: training never sees it, the evaluation sees nothing else.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.vocabulary import (
    CANVAS,
    COLOUR_NAMES,
    COLOURS,
    LETTERS,
    PATTERNS,
    PLACES,
    PLAIN_SHAPES,
    RADII,
    SHAPES_WITH_PATTERN,
    SHAPES_WITH_ROOM,
    SIZES,
)

HELD_OUT_ONE_IN = 10
MARGIN = 9.0
GAP = (12.0, 24.0)
LEAST_GAP = 8.0
PLACE_JITTER = 8.0
ORDINARY_SIZE, ORDINARY_PLACE, ORDINARY_BACKGROUND = "medium", "center", "white"
ORDINARY_SHARE = 0.5
WHITE_SHARE = 0.2
COLOUR_JITTER = 6
LARGEST_ANGLE = 5.0
HARD_SHAPE = "star"
KEPT_WITHOUT_IT = 2 / 3
"""Of the scenes without the shape that is learnt last; training alone sees it more often, what is held out does not."""
SIMILAR = (
    {"red", "orange"},
    {"orange", "yellow"},
    {"orange", "brown"},
    {"red", "brown"},
    {"white", "pink"},
    {"black", "brown"},
    {"blue", "purple"},
)
"""Pairs that never touch in one picture: a blurred edge between them would be a third colour."""
EDGE_STANDS_OUT = 40.0
"""How far, in RGB, the middle of two colours that touch is from the background: an edge must not look like a hole."""


@dataclass(frozen=True)
class Thing:
    """One shape: centre and radius in canvas units, angle in degrees, ``rgb`` as drawn (the colour, jittered)."""

    shape: str
    colour: str
    pattern: str
    size: str
    x: float
    y: float
    radius: float
    angle: float
    rgb: tuple[int, int, int]

    @property
    def name(self) -> str:
        """What it is, without where."""
        return f"{self.pattern} {self.colour} {self.shape}"

    @property
    def place(self) -> str:
        """The cell of the three by three grid that holds its centre."""
        return place_at(self.x, self.y)


@dataclass(frozen=True)
class Scene:
    """A background and one to three things in the order of their ``relation``; the last is drawn first."""

    background: str
    background_rgb: tuple[int, int, int]
    things: tuple[Thing, ...]
    relation: str

    @property
    def combination(self) -> str:
        """What decides whether the scene is held out."""
        names = [thing.name for thing in self.things]
        if len(names) == 1:
            names.append(f"on {self.background}")
        return f"{self.relation}: {', '.join(names)}"

    @property
    def is_held_out(self) -> bool:
        """Whether training may not see this combination."""
        return zlib.crc32(self.combination.encode()) % HELD_OUT_ONE_IN == 0


def place_at(x: float, y: float) -> str:
    """The name of the grid cell at a point in canvas units."""
    column, row = (min(max(int(3 * value / CANVAS), 0), 2) for value in (x, y))
    return PLACES[3 * row + column]


def draw_scene(
    seed: int, index: int, *, held_out: bool, belongs: Callable[[Scene], bool] = lambda _scene: True
) -> Scene:
    """The scene with this number: of the held-out combinations, or of all others; ``belongs`` allows a part of them.

    Held-out scenes come as they are drawn; of the others, those with a star come half as often again.
    """
    random = Random(f"{seed}/{index}")
    while True:
        scene = _any_scene(random)
        if belongs(scene) and scene.is_held_out == held_out and (held_out or _is_kept(random, scene)):
            return scene


def _is_kept(random: Random, scene: Scene) -> bool:
    return any(thing.shape == HARD_SHAPE for thing in scene.things) or random.random() < KEPT_WITHOUT_IT


def _any_scene(random: Random) -> Scene:
    relation = random.choices(
        ("alone", "above", "left", "inside", "row", "column"), weights=(34, 20, 20, 10, 8, 8), k=1
    )[0]
    background = ORDINARY_BACKGROUND if random.random() < WHITE_SHARE else random.choice(COLOUR_NAMES)
    count = {"alone": 1, "row": 3, "column": 3}.get(relation, 2)
    colours = _colours(random, count, background, apart=relation == "inside")
    sizes = _sizes(random, relation, count)
    radii = [random.uniform(*RADII[size]) for size in sizes]
    if count == 3:
        radii = [min(radius, 36.0) for radius in radii]
    if relation == "inside":
        radii[0] = min(radii[0], 22.0)  # what fits into a diamond
    centres = _centres(random, relation, radii)
    shapes = [_shape(random, relation, slot, size) for slot, size in enumerate(sizes)]
    things = tuple(
        Thing(
            shape=shape,
            colour=colour,
            pattern=_pattern(random, shape, size, relation),
            size=size,
            x=x,
            y=y,
            radius=radius,
            angle=0.0 if shape in LETTERS else random.uniform(-LARGEST_ANGLE, LARGEST_ANGLE),
            rgb=jittered(random, colour),
        )
        for shape, colour, size, radius, (x, y) in zip(shapes, colours, sizes, radii, centres, strict=True)
    )
    return Scene(background, jittered(random, background), things, relation)


def jittered(random: Random, colour: str) -> tuple[int, int, int]:
    """The named colour, each channel a little off."""
    red, green, blue = (
        min(max(channel + random.randint(-COLOUR_JITTER, COLOUR_JITTER), 0), 255) for channel in COLOURS[colour]
    )
    return red, green, blue


def colours_may_touch(first: str, second: str) -> bool:
    """Whether the two can be told apart where they meet."""
    return first != second and {first, second} not in SIMILAR


def _colours(random: Random, count: int, background: str, *, apart: bool) -> list[str]:
    while True:
        colours = [random.choice(COLOUR_NAMES) for _ in range(count)]
        stand_out = all(colours_may_touch(colour, background) for colour in colours)
        if stand_out and (not apart or _one_may_lie_in_the_other(colours[0], colours[1], background)):
            return colours


def _one_may_lie_in_the_other(first: str, second: str, background: str) -> bool:
    middle = [(one + other) / 2 for one, other in zip(COLOURS[first], COLOURS[second], strict=True)]
    return colours_may_touch(first, second) and math.dist(middle, COLOURS[background]) > EDGE_STANDS_OUT


def _sizes(random: Random, relation: str, count: int) -> list[str]:
    if relation == "inside":
        return ["small", "large"]
    known = SIZES if count < 3 else SIZES[:2]
    return [ORDINARY_SIZE if random.random() < ORDINARY_SHARE else random.choice(known) for _ in range(count)]


def _shape(random: Random, relation: str, slot: int, size: str) -> str:
    """A small letter would be a few latent pixels high, so there is none."""
    if relation == "inside" and slot == 1:
        return random.choice(SHAPES_WITH_ROOM)
    return random.choice(LETTERS if size != "small" and random.random() < 0.2 else PLAIN_SHAPES)


def _pattern(random: Random, shape: str, size: str, relation: str) -> str:
    may_have_one = shape in SHAPES_WITH_PATTERN and size != "small" and relation != "inside"
    return random.choice(PATTERNS[1:]) if may_have_one and random.random() < 0.3 else "plain"


def _centres(random: Random, relation: str, radii: list[float]) -> list[tuple[float, float]]:
    if relation == "alone":
        return [_cell_centre(random, radii[0])]
    if relation == "inside":
        x, y = (_middle(random) for _ in range(2))
        return [(x + random.uniform(-4, 4), y + random.uniform(-4, 4)), (x, y)]
    along = _side_by_side(random, radii)
    across = _middle(random)
    centres = []
    for position, radius in zip(along, radii, strict=True):
        off = min(max(across + random.uniform(-6, 6), MARGIN + radius), CANVAS - MARGIN - radius)
        centres.append((off, position) if relation in ("above", "column") else (position, off))
    return centres


def _cell_centre(random: Random, radius: float) -> tuple[float, float]:
    """Well inside one cell of the grid, as far as the radius lets it be."""
    place = ORDINARY_PLACE if random.random() < ORDINARY_SHARE else random.choice(PLACES)
    row, column = divmod(PLACES.index(place), 3)
    centres = []
    for number in (column, row):
        middle = CANVAS / 3 * (number + 0.5) + random.uniform(-PLACE_JITTER, PLACE_JITTER)
        centres.append(min(max(middle, MARGIN + radius), CANVAS - MARGIN - radius))
    return centres[0], centres[1]


def _middle(random: Random) -> float:
    return CANVAS / 2 + random.uniform(-PLACE_JITTER, PLACE_JITTER)


def _side_by_side(random: Random, radii: list[float]) -> list[float]:
    """Centres along one axis, in order, round the middle, that leave a gap between neighbours and a margin outside."""
    room = CANVAS - 2 * MARGIN - 2 * sum(radii)
    most = max(min(GAP[1], room / len(radii)), LEAST_GAP)
    gaps = [random.uniform(min(GAP[0], most), most) for _ in radii[1:]]
    spare = max(room - sum(gaps), 0.0)
    position = MARGIN + min(max(spare / 2 + random.uniform(-PLACE_JITTER, PLACE_JITTER), 0.0), spare)
    centres = []
    for radius, gap in zip(radii, [*gaps, 0.0], strict=True):
        centres.append(position + radius)
        position += 2 * radius + gap
    return centres
