"""Scenes with captions, drawn by worker processes. Torch-free, so that these start at once."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from random import Random

from training.captions import Caption, describe
from training.scenes import Scene, draw_scene
from training.subsets import SUBSETS

CAPTIONS_EACH = 4
CHUNK = 500


@dataclass(frozen=True)
class Described:
    """A scene with some of its captions."""

    scene: Scene
    captions: tuple[Caption, ...]


def draw_described(
    seed: int, count: int, workers: int, *, held_out: bool = False, subset: str = "all"
) -> list[Described]:
    """``count`` scenes of a subset with captions, the same for any number of ``workers``."""
    jobs = [(seed, start, min(start + CHUNK, count), held_out, subset) for start in range(0, count, CHUNK)]
    if workers <= 1 or len(jobs) == 1:
        return [item for job in jobs for item in _draw_chunk(job)]
    # Spawned, not forked: the parent holds torch's threads. What a child imports is free of torch.
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return [item for chunk in pool.imap(_draw_chunk, jobs) for item in chunk]


def _draw_chunk(job: tuple[int, int, int, bool, str]) -> list[Described]:
    seed, start, end, held_out, subset = job
    described = []
    for index in range(start, end):
        scene = draw_scene(seed, index, held_out=held_out, belongs=SUBSETS[subset])
        random = Random(f"{seed}/{index}/caption")
        described.append(Described(scene, tuple(describe(scene, random) for _ in range(CAPTIONS_EACH))))
    return described
