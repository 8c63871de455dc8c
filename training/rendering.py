"""Draws scenes, many at once, on any device: signed distances, antialiased by a one-pixel ramp."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from training.scenes import Scene, Thing
from training.vocabulary import CANVAS, COLOURS, PATTERNS, SHAPES, accent_of

MOST_THINGS = 3
# Columns of the array that describes one thing.
SHAPE, PATTERN, X, Y, RADIUS, ANGLE, RED, ACCENT_RED = 0, 1, 2, 3, 4, 5, 6, 9
FIELDS = 12

LETTER_STROKE = 0.17
STROKES: dict[str, tuple[tuple[float, float, float, float], ...]] = {
    "A": ((-0.62, 0.83, 0.0, -0.83), (0.0, -0.83, 0.62, 0.83), (-0.36, 0.3, 0.36, 0.3)),
    "E": ((-0.5, -0.83, -0.5, 0.83), (-0.5, -0.83, 0.5, -0.83), (-0.5, 0.0, 0.4, 0.0), (-0.5, 0.83, 0.5, 0.83)),
    "F": ((-0.5, -0.83, -0.5, 0.83), (-0.5, -0.83, 0.5, -0.83), (-0.5, 0.0, 0.4, 0.0)),
    "H": ((-0.55, -0.83, -0.55, 0.83), (0.55, -0.83, 0.55, 0.83), (-0.55, 0.0, 0.55, 0.0)),
    "K": ((-0.5, -0.83, -0.5, 0.83), (-0.45, 0.1, 0.55, -0.83), (-0.15, -0.1, 0.55, 0.83)),
    "L": ((-0.45, -0.83, -0.45, 0.83), (-0.45, 0.83, 0.5, 0.83)),
    "N": ((-0.55, -0.83, -0.55, 0.83), (0.55, -0.83, 0.55, 0.83), (-0.55, -0.83, 0.55, 0.83)),
    "T": ((-0.65, -0.83, 0.65, -0.83), (0.0, -0.83, 0.0, 0.83)),
    "X": ((-0.58, -0.83, 0.58, 0.83), (0.58, -0.83, -0.58, 0.83)),
    "Z": ((-0.55, -0.83, 0.55, -0.83), (0.55, -0.83, -0.55, 0.83), (-0.55, 0.83, 0.55, 0.83)),
}
"""Middle lines of each letter's strokes, x0 y0 x1 y1 in radii, y down."""

Distance = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def scene_arrays(scenes: Sequence[Scene]) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`render` draws: backgrounds [N, 3] and things [N, 3, FIELDS], float32; a shape of -1 is no thing."""
    backgrounds = torch.tensor([scene.background_rgb for scene in scenes], dtype=torch.float32) / 255
    no_thing = [-1.0] * FIELDS
    rows = []
    for scene in scenes:
        # The last thing of a scene is drawn first: what lies inside comes on top.
        fields = [_thing_fields(thing, scene.background) for thing in reversed(scene.things)]
        rows.append(fields + [no_thing] * (MOST_THINGS - len(fields)))
    return backgrounds, torch.tensor(rows, dtype=torch.float32)


def _thing_fields(thing: Thing, background: str) -> list[float]:
    accent = COLOURS[accent_of(thing.colour, background)]
    place = [thing.x, thing.y, thing.radius, math.radians(thing.angle)]
    colours = [channel / 255 for channel in (*thing.rgb, *accent)]
    return [float(SHAPES.index(thing.shape)), float(PATTERNS.index(thing.pattern)), *place, *colours]


def render(backgrounds: torch.Tensor, things: torch.Tensor, side: int) -> torch.Tensor:
    """Pictures [N, 3, side, side], float32 in -1..1, on the device of ``things``."""
    count, device = len(things), things.device
    axis = (torch.arange(side, device=device, dtype=torch.float32) + 0.5) * (CANVAS / side)
    pictures = backgrounds[:, :, None, None].expand(count, 3, side, side).clone()
    pixel = CANVAS / side
    for slot in range(things.shape[1]):
        rows = things[:, slot]
        for index, shape in enumerate(SHAPES):
            chosen = (rows[:, SHAPE] == index).nonzero()[:, 0]
            if len(chosen):
                pictures[chosen] = _drawn_over(pictures[chosen], rows[chosen], shape, axis, pixel)
    return pictures * 2 - 1


def _drawn_over(
    pictures: torch.Tensor, rows: torch.Tensor, shape: str, axis: torch.Tensor, pixel: float
) -> torch.Tensor:
    x, y = _local(rows, axis)
    radius = rows[:, RADIUS, None, None]
    coverage = _ramp(DISTANCES[shape](x, y, radius), pixel)[:, None]
    colour = rows[:, RED : RED + 3, None, None]
    if bool((rows[:, PATTERN] > 0).any()):
        accent = rows[:, ACCENT_RED : ACCENT_RED + 3, None, None]
        share = _ramp(_pattern_distance(x, y, radius, rows[:, PATTERN]), pixel)[:, None]
        colour = colour + share * (accent - colour)
    return pictures + coverage * (colour - pictures)


def _local(rows: torch.Tensor, axis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Coordinates [N, side, side] relative to each thing, turned by its angle."""
    x = axis[None, None, :] - rows[:, X, None, None]
    y = axis[None, :, None] - rows[:, Y, None, None]
    cos, sin = torch.cos(rows[:, ANGLE, None, None]), torch.sin(rows[:, ANGLE, None, None])
    return cos * x + sin * y, cos * y - sin * x


def _ramp(distance: torch.Tensor, pixel: float) -> torch.Tensor:
    return (0.5 - distance / pixel).clamp(0, 1)


def _pattern_distance(x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """Negative where the second colour lies."""
    cell = 0.42 * radius
    across, along = _to_cell_edge(x, cell), _to_cell_edge(y, cell)
    striped = along
    checked = torch.maximum(torch.minimum(across, along), -torch.maximum(across, along))
    spacing = 0.62 * radius
    to_dot_x = torch.remainder(x + spacing / 2, spacing) - spacing / 2
    to_dot_y = torch.remainder(y + spacing / 2, spacing) - spacing / 2
    dotted = torch.hypot(to_dot_x, to_dot_y) - 0.19 * radius
    kind = pattern[:, None, None]
    nothing = torch.ones_like(x) * 1e3
    distance = torch.where(kind == PATTERNS.index("striped"), striped, nothing)
    distance = torch.where(kind == PATTERNS.index("dotted"), dotted, distance)
    return torch.where(kind == PATTERNS.index("checked"), checked, distance)


def _to_cell_edge(value: torch.Tensor, cell: torch.Tensor) -> torch.Tensor:
    """Signed distance to the edges of every second stripe of width ``cell``; the middle stripe is outside."""
    from_middle = torch.remainder(value, 2 * cell) - cell
    return from_middle.abs() - cell / 2


def _circle(x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    return torch.hypot(x, y) - radius


def _ring(x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    return (torch.hypot(x, y) - 0.76 * radius).abs() - 0.24 * radius


def _box(x: torch.Tensor, y: torch.Tensor, half_width: torch.Tensor, half_height: torch.Tensor) -> torch.Tensor:
    return torch.maximum(x.abs() - half_width, y.abs() - half_height)


def _square(x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    return _box(x, y, 0.9 * radius, 0.9 * radius)


def _diamond(x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    return (x.abs() + y.abs() - radius) / math.sqrt(2)


def _triangle(x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """Apex at the top, half as wide at its foot as it is high, and a little more."""
    slope = 1.05 / 1.85
    side = (x.abs() - slope * (y + radius)) / math.hypot(1, slope)
    return torch.maximum(side, y - 0.85 * radius)


def _cross(x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    return torch.minimum(_box(x, y, radius, 0.32 * radius), _box(x, y, 0.32 * radius, radius))


def _star(x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """Five points; the plane folded onto one half point, then the distance to its edge."""
    turn = 2 * math.pi / 5
    angle = torch.remainder(torch.atan2(x, -y) + turn / 2, turn) - turn / 2
    length = torch.hypot(x, y)
    along, across = length * torch.cos(angle), length * torch.sin(angle).abs()
    inner = 0.45
    foot_x, foot_y = inner * math.cos(turn / 2), inner * math.sin(turn / 2)
    edge_x, edge_y = foot_x - 1, foot_y
    norm = math.hypot(edge_x, edge_y)
    return (along - radius) * (edge_y / norm) - across * (edge_x / norm)


def _letter(name: str) -> Distance:
    def distance(x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
        nearest: torch.Tensor | None = None
        for x0, y0, x1, y1 in STROKES[name]:
            from_x, from_y = x - x0 * radius, y - y0 * radius
            to_x, to_y = (x1 - x0) * radius, (y1 - y0) * radius
            share = ((from_x * to_x + from_y * to_y) / (to_x**2 + to_y**2)).clamp(0, 1)
            reach = torch.hypot(from_x - share * to_x, from_y - share * to_y)
            nearest = reach if nearest is None else torch.minimum(nearest, reach)
        assert nearest is not None
        return nearest - LETTER_STROKE * radius

    return distance


DISTANCES: dict[str, Distance] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "diamond": _diamond,
    "star": _star,
    "ring": _ring,
    "cross": _cross,
    **{name: _letter(name) for name in STROKES},
}
"""Signed distance in canvas units from points [N, side, side] to a shape of ``radius`` [N, 1, 1]; negative inside."""
