"""Parts of all scenes, by name. ``simple`` is small enough to be learnt on a CPU in half an hour. Torch-free."""

from __future__ import annotations

from collections.abc import Callable

from training.scenes import Scene

SIMPLE_SHAPES = frozenset({"circle", "square", "triangle", "cross"})
SIMPLE_COLOURS = frozenset({"red", "green", "blue", "yellow"})
SIMPLE_BACKGROUNDS = frozenset({"white", "black"})


def is_simple(scene: Scene) -> bool:
    """One plain thing that is not small, of four shapes and four colours, on white or black: 32 combinations."""
    if scene.relation != "alone" or scene.background not in SIMPLE_BACKGROUNDS:
        return False
    thing = scene.things[0]
    is_known = thing.shape in SIMPLE_SHAPES and thing.colour in SIMPLE_COLOURS
    return is_known and thing.pattern == "plain" and thing.size != "small"


SUBSETS: dict[str, Callable[[Scene], bool]] = {"all": lambda _scene: True, "simple": is_simple}
