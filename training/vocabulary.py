"""What pictures are made of, by name: colours, shapes, patterns, sizes, places. Torch-free."""

from __future__ import annotations

CANVAS = 256.0
"""Side of the picture in the units of every coordinate and radius here."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (222, 45, 38),
    "orange": (245, 140, 25),
    "yellow": (250, 218, 45),
    "green": (45, 160, 75),
    "cyan": (70, 205, 220),
    "blue": (40, 85, 200),
    "purple": (135, 60, 170),
    "pink": (250, 160, 195),
    "brown": (125, 75, 40),
    "black": (25, 25, 28),
    "white": (248, 248, 248),
    "gray": (140, 140, 145),
}
COLOUR_NAMES = tuple(COLOURS)

PLAIN_SHAPES = ("circle", "square", "triangle", "diamond", "star", "ring", "cross")
LETTERS = ("A", "E", "F", "H", "K", "L", "N", "T", "X", "Z")
SHAPES = (*PLAIN_SHAPES, *LETTERS)
SHAPES_WITH_PATTERN = ("circle", "square", "diamond", "triangle")
SHAPES_WITH_ROOM = ("circle", "square", "diamond")
"""Shapes that another one can lie inside of."""

PATTERNS = ("plain", "striped", "dotted", "checked")
SIZES = ("small", "medium", "large")
RADII = {"small": (20.0, 27.0), "medium": (35.0, 44.0), "large": (54.0, 60.0)}
"""Half the height of a shape; no picture has one between the classes."""
SIZE_LIMITS = (31.0, 49.0)
"""Where the checker cuts: below the first is small, from the second on large."""

PLACES = (
    "top left",
    "top",
    "top right",
    "left",
    "center",
    "right",
    "bottom left",
    "bottom",
    "bottom right",
)
"""The cells of a three by three grid, row by row."""

RELATIONS = ("alone", "above", "left", "inside", "row", "column")
"""Of a scene's things in their order: the first above, left of or inside the second; three from left or from top."""

ACCENTS = ("white", "black", "gray")


def accent_of(colour: str, background: str) -> str:
    """The second colour of a pattern: the first of white, black, gray that stands out from both."""
    pale = {"white", "yellow"}
    for accent in ACCENTS:
        if accent not in (colour, background) and not (accent == "white" and colour in pale):
            return accent
    raise ValueError(f"{colour} on {background} leaves no colour for a pattern")
