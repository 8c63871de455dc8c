"""Is the checker right? It must accept true renders, and refuse prompts that are wrong in one word.

``python -m training.checker_validation`` prints both shares with their intervals, the second by kind of mistake.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator
from random import Random

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from training.captions import Caption, Claims, ThingClaim, describe
from training.checker import LEAST_OVERLAP, OVERLAPS, faults_of, look
from training.intervals import share_with_interval
from training.options import finite_number, told, whole_number
from training.rendering import render, scene_arrays
from training.scenes import Scene, draw_scene
from training.vocabulary import ACCENTS, COLOUR_NAMES, PATTERNS, PLACES, SHAPES, SIZES

SEED = 20_261_130
BATCH = 50
LARGEST_BLUR = 16.0
"""In pixels: nothing can be told apart long before."""


def held_out_renders(count: int, seed: int = SEED) -> Iterator[tuple[Scene, Caption, NDArray[np.uint8]]]:
    """Scenes of held-out combinations, a caption of each, and the true picture [256, 256, 3]."""
    for start in range(0, count, BATCH):
        scenes = [draw_scene(seed, index, held_out=True) for index in range(start, min(start + BATCH, count))]
        backgrounds, things = scene_arrays(scenes)
        pictures = ((render(backgrounds, things, 256) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
        for number, (scene, picture) in enumerate(zip(scenes, pictures, strict=True)):
            yield scene, describe(scene, Random(f"{seed}/{start + number}/caption")), picture


def _other(random: Random, names: tuple[str, ...], name: str) -> str:
    return random.choice([other for other in names if other != name])


def _with_thing(claims: Claims, index: int, thing: ThingClaim) -> Claims:
    things = list(claims.things)
    things[index] = thing
    return dataclasses.replace(claims, things=tuple(things))


def wrong_claims(claims: Claims, random: Random) -> Iterator[tuple[str, Claims]]:
    """The claims with one mistake each, by kind of mistake; only of what the caption says."""
    index = random.randrange(len(claims.things))
    thing = claims.things[index]
    choices: dict[str, tuple[str, ...]] = {"shape": SHAPES, "pattern": PATTERNS, "size": SIZES, "place": PLACES}
    # Black and white stripes or checks may be called by either colour.
    if not (thing.pattern != "plain" and thing.colour in ACCENTS):
        choices["colour"] = COLOUR_NAMES
    for attribute, names in choices.items():
        value = getattr(thing, attribute)
        if value is not None:
            wrong = dataclasses.replace(thing, **{attribute: _other(random, names, value)})
            yield attribute, _with_thing(claims, index, wrong)
    if claims.background is not None:
        yield "background", dataclasses.replace(claims, background=_other(random, COLOUR_NAMES, claims.background))
    if len(claims.things) > 1:
        yield "number", dataclasses.replace(claims, things=claims.things[1:], relation="any")
    distinct = {(item.shape, item.colour, item.pattern) for item in claims.things}
    if claims.relation not in ("alone", "any") and len(distinct) > 1 and _is_order_said(claims):
        yield "order", dataclasses.replace(claims, things=tuple(reversed(claims.things)))


def _is_order_said(claims: Claims) -> bool:
    first, last = claims.things[0], claims.things[-1]
    return (first.shape, first.colour, first.pattern) != (last.shape, last.colour, last.pattern)


def main(write: Callable[[str], object] = sys.stdout.write, arguments: list[str] | None = None) -> int:
    """Print both shares; 1 where fewer than 99 % of true renders are accepted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=whole_number(1), default=1000, help="how many true renders (default: 1000)")
    overlap = f"how strict to be about outlines (default: {LEAST_OVERLAP}, as evaluations are)"
    parser.add_argument("--least-overlap", type=float, choices=OVERLAPS, default=LEAST_OVERLAP, help=overlap)
    soft = "standard deviation in pixels of a Gaussian over each picture (default: none)"
    parser.add_argument("--blur", type=finite_number(0, LARGEST_BLUR), default=0.0, help=soft)
    options = parser.parse_args(arguments)
    count = options.pictures
    accepted = 0
    refused: dict[str, int] = {}
    tried: dict[str, int] = {}
    for number, (_, caption, picture) in enumerate(held_out_renders(count)):
        seen = look(gaussian_filter(picture, (options.blur, options.blur, 0)), options.least_overlap)
        accepted += not faults_of(seen, caption.claims)
        for kind, claims in wrong_claims(caption.claims, Random(f"{number}/mistake")):
            tried[kind] = tried.get(kind, 0) + 1
            refused[kind] = refused.get(kind, 0) + bool(faults_of(seen, claims))
    write(f"accepts true renders: {share_with_interval(accepted, count)}\n")
    write(f"refuses one mistake:  {share_with_interval(sum(refused.values()), sum(tried.values()))}\n")
    for kind in sorted(tried):
        write(f"  {kind:10} {share_with_interval(refused[kind], tried[kind])}\n")
    return 0 if accepted >= 0.99 * count else 1


if __name__ == "__main__":
    sys.exit(told(main))
