"""Stage and step timers (design contract 2): synchronised at stage edges, no host sync inside the loop."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.pipelines.progress import SILENT, ProgressObserver

INPUT_VALIDATION = "InputValidationStage"
PROMPT_REWRITE = "LongCatPromptRewriteStage"
PROMPT_ENHANCEMENT = "PromptEnhancementStage"
TEXT_ENCODING = "TextEncodingStage"
IMAGE_VAE_ENCODING = "ImageVAEEncodingStage"
LATENT_PREPARATION = "LatentPreparationStage"
TIMESTEP_PREPARATION = "TimestepPreparationStage"
DENOISING = "DenoisingStage"
DECODING = "DecodingStage"


@dataclass(frozen=True)
class StageTime:
    """How long one stage took, device work included; one that came several times, all its times together."""

    name: str
    milliseconds: float


@dataclass(frozen=True)
class FrameArrival:
    """``frames`` more frames of a clip lay in host memory, ``milliseconds`` after their request began."""

    frames: int
    milliseconds: float


class StageClock:
    """Times the stages of one request. Steps are device events on CUDA, read after the stage; host time elsewhere.

    A stage may come again, as denoising and decoding do where a clip is made chunk by chunk.
    """

    def __init__(self, device: torch.device, observer: ProgressObserver = SILENT) -> None:
        self.stages: list[StageTime] = []
        self.frame_arrivals: list[FrameArrival] = []
        self.worker_ms = 0.0
        self._device = device
        self._observer = observer
        self._marks: list[list[Any]] = []
        self._running: tuple[str, float] | None = None
        self._request_started = 0.0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Worker E2E: everything from the first stage's start to the device being idle after the last."""
        self._synchronize()
        self._request_started = time.perf_counter()
        yield
        self._synchronize()
        self.worker_ms = (time.perf_counter() - self._request_started) * 1e3

    @contextmanager
    def stage(self, name: str, total_steps: int | None = None) -> Iterator[None]:
        """Time one stage; an exception leaves it unrecorded."""
        self.begin(name, total_steps)
        yield
        self.end()

    def begin(self, name: str, total_steps: int | None = None) -> None:
        """Start a stage where it does not fit a ``with`` block; :meth:`end` closes it."""
        assert self._running is None, f"stage {name} begins inside another"
        self._observer.stage_started(name, total_steps)
        self._synchronize()
        self._running = (name, time.perf_counter())
        if total_steps is not None:
            self._marks.append([self._mark()])

    def end(self) -> None:
        """End the running stage."""
        assert self._running is not None, "no stage is running"
        self._synchronize()
        name, started = self._running
        milliseconds = (time.perf_counter() - started) * 1e3
        self._running = None
        self._add(StageTime(name, milliseconds))
        self._observer.stage_finished(name, milliseconds)

    def step_finished(self) -> None:
        """Mark the end of a denoising step without waiting for the device."""
        marks = self._marks[-1]
        marks.append(self._mark())
        self._observer.step_finished(len(marks) - 2)

    def frames_arrived(self, frames: int) -> None:
        """Note that ``frames`` more frames are in host memory now; whoever copied them has waited for the device."""
        since_start = time.perf_counter() - self._request_started
        self.frame_arrivals.append(FrameArrival(frames, since_start * 1e3))

    def denoise_steps_ms(self) -> tuple[float, ...]:
        """Milliseconds of each step, in order; call it after the stage has ended."""
        pairs = [pair for marks in self._marks for pair in itertools.pairwise(marks)]
        if self._device.type == "cuda":
            return tuple(before.elapsed_time(after) for before, after in pairs)
        return tuple((after - before) * 1e3 for before, after in pairs)

    def _add(self, time_taken: StageTime) -> None:
        for place, earlier in enumerate(self.stages):
            if earlier.name == time_taken.name:
                together = earlier.milliseconds + time_taken.milliseconds
                self.stages[place] = StageTime(earlier.name, together)
                return
        self.stages.append(time_taken)

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
