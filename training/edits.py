"""Edits: two scenes that differ in one thing, and the instruction that makes the second of the first. Torch-free.

Data for an edit stage, which does not exist yet; nothing else here uses it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from random import Random

from training.captions import Claims, ThingClaim
from training.scenes import Scene, Thing, colours_may_touch, draw_scene, jittered
from training.vocabulary import COLOUR_NAMES, LETTERS, PATTERNS, SHAPES_WITH_PATTERN

RECOLOUR_FORMS = ("make {the} {new}", "turn {the} {new}", "paint {the} {new}", "change the color of {the} to {new}")
BACKGROUND_FORMS = ("make the background {new}", "change the background to {new}", "turn the background {new}")
REMOVE_FORMS = ("remove {the}", "take {the} away")
PATTERN_FORMS = ("make {the} {new}", "turn {the} {new}")


@dataclass(frozen=True)
class Edit:
    """The scene before and after, and what is asked for."""

    before: Scene
    after: Scene
    instruction: str

    @property
    def claims(self) -> Claims:
        """What the edited picture must show: everything, for whatever is not named must stay."""
        things = tuple(
            ThingClaim(thing.shape, thing.colour, thing.pattern, thing.size, None) for thing in self.after.things
        )
        return Claims(things, self.after.relation, self.after.background)


def draw_edit(seed: int, index: int, *, held_out: bool) -> Edit:
    """The edit with this number; ``before`` and ``after`` are both held out, or neither is."""
    attempt = 0
    while True:
        random = Random(f"{seed}/{index}/edit/{attempt}")
        before = draw_scene(seed, index * 1000 + attempt, held_out=held_out)
        edit = random.choice((_recoloured, _recoloured, _on_other_background, _without_one, _with_pattern))(
            before, random
        )
        if edit is not None and edit.after.is_held_out == held_out:
            return edit
        attempt += 1


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
    return Edit(scene, after, random.choice(RECOLOUR_FORMS).format(the=called, new=colour))


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
    return Edit(scene, after, random.choice(BACKGROUND_FORMS).format(new=colour))


def _without_one(scene: Scene, random: Random) -> Edit | None:
    """One of two goes; what is left stands alone."""
    if len(scene.things) != 2:
        return None
    slot = 0 if scene.relation == "inside" else random.randrange(2)
    called = _the(scene, scene.things[slot])
    if called is None:
        return None
    after = dataclasses.replace(scene, things=(scene.things[1 - slot],), relation="alone")
    return Edit(scene, after, random.choice(REMOVE_FORMS).format(the=called))


def _with_pattern(scene: Scene, random: Random) -> Edit | None:
    slot = random.randrange(len(scene.things))
    thing, called = scene.things[slot], _the(scene, scene.things[slot])
    may_have_one = thing.shape in SHAPES_WITH_PATTERN and thing.size != "small" and scene.relation != "inside"
    if called is None or not may_have_one or thing.pattern != "plain":
        return None
    pattern = random.choice(PATTERNS[1:])
    after = _with_thing(scene, slot, dataclasses.replace(thing, pattern=pattern))
    return Edit(scene, after, random.choice(PATTERN_FORMS).format(the=called, new=pattern))
