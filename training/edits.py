"""Edits: two scenes that differ in one thing, and the instruction that makes the second of the first. Torch-free.

The first scenes are those of :func:`training.scenes.draw_scene`, so with their captions they are data for text to image
as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.captions import Caption, Claims, ThingClaim, describe
from training.described import CAPTIONS_EACH, Job, in_chunks
from training.scenes import Scene, Thing, colours_may_touch, draw_scene, jittered
from training.subsets import SUBSETS
from training.vocabulary import (
    COLOUR_NAMES,
    LETTERS,
    PATTERNS,
    PLAIN_SHAPES,
    SHAPES_WITH_PATTERN,
    SHAPES_WITH_ROOM,
)

TRIES = 40
"""How often a scene is tried to be edited before another one is taken; hardly any needs so many."""
MOST_SCENES = 1000

RECOLOUR_FORMS = ("make {the} {new}", "turn {the} {new}", "paint {the} {new}", "change the color of {the} to {new}")
BACKGROUND_FORMS = ("make the background {new}", "change the background to {new}", "turn the background {new}")
REMOVE_FORMS = ("remove {the}", "take {the} away")
PATTERN_FORMS = ("make {the} {new}", "turn {the} {new}")
SHAPE_FORMS = ("replace {the} with a {new}", "change {the} to a {new}")


@dataclass(frozen=True)
class Edit:
    """The scene before and after, what is asked for, and which kind of edit that is."""

    before: Scene
    after: Scene
    instruction: str
    kind: str

    @property
    def claims(self) -> Claims:
        """What the edited picture must show: everything, for whatever is not named must stay."""
        things = tuple(
            ThingClaim(thing.shape, thing.colour, thing.pattern, thing.size, None) for thing in self.after.things
        )
        return Claims(things, self.after.relation, self.after.background)


EditKind = Callable[[Scene, Random], Edit | None]


@dataclass(frozen=True)
class DescribedEdit:
    """An edit, and captions of the scene before it."""

    edit: Edit
    captions: tuple[Caption, ...]


def draw_edit(seed: int, index: int, *, held_out: bool, subset: str = "all") -> Edit:
    """The edit with this number; ``before`` and ``after`` are both held out, or neither is, and both in the subset.

    Of training edits the first scenes are distributed as all scenes are; of held-out ones the kinds of edit are.
    A ValueError where the subset seems to have no such edit.
    """
    random = Random(f"{seed}/{index}/edit")
    kinds = (random.choice(EDIT_KINDS),) if held_out else EDIT_KINDS
    belongs = SUBSETS[subset]
    for attempt in range(MOST_SCENES):
        before = draw_scene(seed, index * 1000 + attempt, held_out=held_out, belongs=belongs)
        for _ in range(TRIES):
            edit = random.choice(kinds)(before, random)
            if edit is not None and edit.after.is_held_out == held_out and belongs(edit.after):
                return edit
        if held_out and attempt % 50 == 49:
            kinds = (random.choice(EDIT_KINDS),)  # a subset may know no edit of a kind
    which = "held-out" if held_out else "training"
    raise ValueError(f"{MOST_SCENES} scenes of the subset {subset!r} have no edit between two {which} combinations")


def draw_edits(
    seed: int, count: int, workers: int, *, held_out: bool = False, subset: str = "all"
) -> list[DescribedEdit]:
    """``count`` edits of a subset with captions, the same for any number of ``workers``."""
    return in_chunks(_draw_chunk, seed, count, workers, held_out, subset)


def _draw_chunk(job: Job) -> list[DescribedEdit]:
    seed, start, end, held_out, subset = job
    drawn = []
    for index in range(start, end):
        edit = draw_edit(seed, index, held_out=held_out, subset=subset)
        random = Random(f"{seed}/{index}/edit caption")
        drawn.append(DescribedEdit(edit, tuple(describe(edit.before, random) for _ in range(CAPTIONS_EACH))))
    return drawn


def _the(scene: Scene, thing: Thing) -> str | None:
    """How the instruction calls a thing: by its shape, or by colour and shape; None where that names another too."""
    shape = f'letter "{thing.shape}"' if thing.shape in LETTERS else thing.shape
    if sum(other.shape == thing.shape for other in scene.things) == 1:
        return f"the {shape}"
    if sum((other.shape, other.colour) == (thing.shape, thing.colour) for other in scene.things) == 1:
        return f"the {thing.colour} {shape}"
    return None


def _with_thing(scene: Scene, slot: int, thing: Thing) -> Scene:
    things = list(scene.things)
    things[slot] = thing
    return dataclasses.replace(scene, things=tuple(things))


def _recoloured(scene: Scene, random: Random) -> Edit | None:
    slot = random.randrange(len(scene.things))
    thing, called = scene.things[slot], _the(scene, scene.things[slot])
    neighbours = [scene.background, *(other.colour for other in scene.things if scene.relation == "inside")]
    colours = [
        name
        for name in COLOUR_NAMES
        if name != thing.colour and all(colours_may_touch(name, other) for other in neighbours)
    ]
    if called is None or not colours:
        return None
    colour = random.choice(colours)
    after = _with_thing(scene, slot, dataclasses.replace(thing, colour=colour, rgb=jittered(random, colour)))
    return Edit(scene, after, random.choice(RECOLOUR_FORMS).format(the=called, new=colour), "colour")


def _on_other_background(scene: Scene, random: Random) -> Edit | None:
    colours = [
        name
        for name in COLOUR_NAMES
        if name != scene.background and all(colours_may_touch(name, thing.colour) for thing in scene.things)
    ]
    if not colours or any(thing.pattern != "plain" for thing in scene.things):
        return None
    colour = random.choice(colours)
    after = dataclasses.replace(scene, background=colour, background_rgb=jittered(random, colour))
    return Edit(scene, after, random.choice(BACKGROUND_FORMS).format(new=colour), "background")


def _without_one(scene: Scene, random: Random) -> Edit | None:
    """One of two goes; what is left stands alone."""
    if len(scene.things) != 2:
        return None
    slot = 0 if scene.relation == "inside" else random.randrange(2)
    called = _the(scene, scene.things[slot])
    if called is None:
        return None
    after = dataclasses.replace(scene, things=(scene.things[1 - slot],), relation="alone")
    return Edit(scene, after, random.choice(REMOVE_FORMS).format(the=called), "removal")


def _with_pattern(scene: Scene, random: Random) -> Edit | None:
    slot = random.randrange(len(scene.things))
    thing, called = scene.things[slot], _the(scene, scene.things[slot])
    may_have_one = thing.shape in SHAPES_WITH_PATTERN and thing.size != "small" and scene.relation != "inside"
    if called is None or not may_have_one or thing.pattern != "plain":
        return None
    pattern = random.choice(PATTERNS[1:])
    after = _with_thing(scene, slot, dataclasses.replace(thing, pattern=pattern))
    return Edit(scene, after, random.choice(PATTERN_FORMS).format(the=called, new=pattern), "pattern")


def _with_other_shape(scene: Scene, random: Random) -> Edit | None:
    slot = random.randrange(len(scene.things))
    thing, called = scene.things[slot], _the(scene, scene.things[slot])
    allowed: tuple[str, ...] = PLAIN_SHAPES if thing.pattern == "plain" else SHAPES_WITH_PATTERN
    if scene.relation == "inside" and slot == 1:
        allowed = SHAPES_WITH_ROOM
    if called is None:
        return None
    shape = random.choice([name for name in allowed if name != thing.shape])
    after = _with_thing(scene, slot, dataclasses.replace(thing, shape=shape))
    return Edit(scene, after, random.choice(SHAPE_FORMS).format(the=called, new=shape), "shape")


EDIT_KINDS: tuple[EditKind, ...] = (
    _recoloured,
    _recoloured,
    _on_other_background,
    _without_one,
    _with_pattern,
    _with_other_shape,
)
