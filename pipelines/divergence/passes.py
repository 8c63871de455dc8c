"""What an arm's process is asked to do, one pass after the other, and what it answers (JSON-ready).

Pass ``latents`` runs the whole request and digests the latents where the loop begins and behind every step; copies go
to files, for the curve of growth. Pass ``calls`` runs it again up to one region, a step or what is before or after the
loop, digests what every call of it was given and gave, and stops there. With ``wanted`` calls it also writes down their
tensors.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuseproof.pipelines import memory
from fuseproof.pipelines.divergence.calls import AFTER_LOOP, BEFORE_LOOP, in_hexadecimal
from fuseproof.pipelines.divergence.digests import digest, values_of
from fuseproof.pipelines.divergence.following import RequestFollower, StopHere
from fuseproof.pipelines.divergence.module_facts import facts_of
from fuseproof.pipelines.divergence.subject import Subject
from fuseproof.pipelines.divergence.watching import CallWatch, Key

Job = Mapping[str, Any]
Answer = dict[str, Any]


@dataclass(frozen=True)
class ArmPasses:
    """One loaded arm. ``run`` carries its request out once, telling ``follower``, and returns the raw result."""

    subject: Subject
    follower: RequestFollower
    run: Callable[[], Any]
    device: torch.device
    describe: Callable[[], Answer] = dict
    """What the arm says of itself besides: fast paths, graphs, warnings."""

    def answer(self, job: Job) -> Answer:
        """Carry out one pass."""
        passes = {"latents": self._latents, "calls": self._calls}
        return passes[job["pass"]](job)

    def _latents(self, job: Job) -> Answer:
        folder, boundaries = Path(job["folder"]), _Boundaries()

        def reached(number: int, latents: torch.Tensor) -> None:
            boundaries.add(latents)
            torch.save(latents.detach().cpu().clone(), latents_file(folder, number))

        result, facts = self._measured(reached)
        return {**facts, "boundaries": boundaries.to_json(), "result_sha256": _sha256(result), **self.describe()}

    def _calls(self, job: Job) -> Answer:
        region, boundaries = _Region(job["first"], job["last"], job["steps"]), _Boundaries()
        wanted: frozenset[Key] = frozenset(tuple(key) for key in job.get("wanted", ()))
        watch = CallWatch(self.subject, wanted)

        def reached(number: int, latents: torch.Tensor) -> None:
            boundaries.add(latents)
            if number == region.last:
                raise StopHere
            watch.begin_region(AFTER_LOOP if number == region.steps else f"step {number + 1}")
            if number >= region.first:
                watch.start()

        watch.begin_region(BEFORE_LOOP)
        if region.first < 0:
            watch.start()
        try:
            result, facts = self._measured(reached, watch.stop)
        finally:
            watch.stop()
        if wanted:
            torch.save(watch.kept, job["file"])
        return {
            **facts,
            "boundaries": boundaries.to_json(),
            "result_sha256": None if result is None else _sha256(result),
            "calls": watch.calls(),
            "disagreements": watch.disagreements,
            "facts": {key[1]: _with(facts_of(self.subject, key[1]), watch.settings.get(key, {})) for key in wanted},
        }

    def _measured(
        self, reached: Callable[[int, torch.Tensor], None], ended: Callable[[], None] = lambda: None
    ) -> tuple[Any, Answer]:
        memory.reset_peaks(self.device)
        started, result = time.perf_counter(), None
        self.follower.begin(reached)
        try:
            result = self.run()
        except StopHere:
            pass
        finally:
            self.follower.end()
            ended()
        seconds = time.perf_counter() - started
        checkpoint = memory.checkpoint(self.device)
        peak = checkpoint.get("peak_allocated_mb", checkpoint.get("peak_host_rss_mb"))
        return result, {"seconds": round(seconds, 3), "peak_mib": peak}


@dataclass(frozen=True)
class _Region:
    """From behind boundary ``first`` (-1: the request's beginning) to boundary ``last``; ``steps`` + 1 is its end."""

    first: int
    last: int
    steps: int


class _Boundaries:
    """The digests of the latents seen so far."""

    def __init__(self) -> None:
        self._digests: list[torch.Tensor] = []
        self._layouts: list[tuple[list[int], str]] = []

    def add(self, latents: torch.Tensor) -> None:
        found = digest(latents)
        assert found is not None, "latents are plain tensors"
        self._digests.append(found)
        self._layouts.append((list(latents.shape), str(latents.dtype).removeprefix("torch.")))

    def to_json(self) -> list[Answer]:
        pairs = zip(values_of(self._digests), self._layouts, strict=True)
        return [{"digest": in_hexadecimal(pair[0]), "shape": shape, "dtype": dtype} for pair, (shape, dtype) in pairs]


def _with(facts: Answer, settings: Mapping[str, str]) -> Answer:
    return {**facts, "settings": {**facts["settings"], **settings}}


def _sha256(result: Any) -> str:
    array = np.ascontiguousarray(result)
    return hashlib.sha256(f"{array.dtype.str}|{array.shape}|".encode() + array.tobytes()).hexdigest()


def latents_file(folder: Path, number: int) -> Path:
    """Where the latents at boundary ``number`` are kept."""
    return folder / f"latents-{number:04d}.pt"
