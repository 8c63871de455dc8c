"""Scenes with captions, drawn by worker processes. Torch-free, so that these start at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from training.captions import Caption, describe
from training.scenes import Scene, draw_scene
from training.subsets import SUBSETS

CAPTIONS_EACH = 4
CHUNK = 500
Job = tuple[int, int, int, bool, str]
"""Seed, first and last number of the scenes, whether they are held out, subset."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Described:
    """A scene with some of its captions."""

    scene: Scene
    captions: tuple[Caption, ...]


def draw_described(
    seed: int, count: int, workers: int, *, held_out: bool = False, subset: str = "all"
) -> list[Described]:
    """``count`` scenes of a subset with captions, the same for any number of ``workers``."""
    return in_chunks(_describe_chunk, seed, count, workers, held_out, subset)


def draw_scenes(seed: int, count: int, workers: int, *, subset: str = "all") -> list[Scene]:
    """The scenes of :func:`draw_described`, without captions."""
    return in_chunks(_scene_chunk, seed, count, workers, False, subset)


def in_chunks(
    draw: Callable[[Job], list[Item]], seed: int, count: int, workers: int, held_out: bool, subset: str
) -> list[Item]:
    """``count`` items in order, drawn by ``workers`` processes; ``draw`` is a function of a module without torch."""
    jobs = [(seed, start, min(start + CHUNK, count), held_out, subset) for start in range(0, count, CHUNK)]
    if workers <= 1 or len(jobs) == 1:
        return [item for job in jobs for item in draw(job)]
    # Spawned, not forked: the parent holds torch's threads. What a child imports is free of torch.
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return [item for chunk in pool.imap(draw, jobs) for item in chunk]


def _scene_chunk(job: Job) -> list[Scene]:
    seed, start, end, held_out, subset = job
    return [draw_scene(seed, index, held_out=held_out, belongs=SUBSETS[subset]) for index in range(start, end)]


def _describe_chunk(job: Job) -> list[Described]:
    described = []
    for index, scene in enumerate(_scene_chunk(job), job[1]):
        random = Random(f"{job[0]}/{index}/caption")
        described.append(Described(scene, tuple(describe(scene, random) for _ in range(CAPTIONS_EACH))))
    return described
