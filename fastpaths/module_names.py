"""The names of a model's modules, as a glob gives them: which there are, and which are near one that names none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

NEAREST_SHOWN = 4
BLOCKS_SHOWN = 12


def matches(pattern: str, name: str) -> bool:
    """Whether a glob names a module: ``*`` stands for one part of a name or less, ``**`` for several."""
    return re.fullmatch("".join(map(_translated, re.split(r"(\*\*|\*|\?)", pattern))), name) is not None


def shapes_of(names: Iterable[str]) -> list[str]:
    """The distinct names, numbers made a star (``layers.*.mlp``): globs that each name at least one module."""
    return list(dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", name) for name in names if name))


def names_text(pattern: str, names: Iterable[str]) -> str:
    """Two sentences: the names nearest to ``pattern``, and those of the model's blocks and of what is right in them."""
    shapes = shapes_of(names)
    nearest = sorted(shapes, key=lambda shape: -_nearness(pattern, shape))[:NEAREST_SHOWN]
    blocks = [
        shape for shape in shapes if any(shape.startswith(f"{block}.") or shape == block for block in _blocks(shapes))
    ]
    right_in_them = [shape for shape in blocks if shape.count(".") <= 2]
    told = f"Nearest are {', '.join(nearest)}."
    return f"{told} Its blocks and their parts are {_listed(right_in_them)}." if right_in_them else told


def _blocks(shapes: Iterable[str]) -> list[str]:
    """Numbered modules that are made of others: ``layers.*``."""
    known = list(shapes)
    return [
        shape
        for shape in known
        if re.fullmatch(r"[^.*]+\.\*", shape) and any(one.startswith(f"{shape}.") for one in known)
    ]


def _listed(shapes: list[str]) -> str:
    more = len(shapes) - BLOCKS_SHOWN
    return ", ".join(shapes[:BLOCKS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _nearness(pattern: str, shape: str) -> float:
    """Of the last parts first: who misspells a block's name still knows what is in the block."""
    last = [one.rsplit(".", 1)[-1] for one in (pattern, shape)]
    return 2 * _likeness(*last) + _likeness(pattern, shape)


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def _translated(part: str) -> str:
    return {"**": ".*", "*": "[^.]*", "?": "[^.]"}.get(part, re.escape(part))
