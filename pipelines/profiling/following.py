"""Where a request's profiled stretches begin and end: a profiler for each, complete steps only, nothing under way.

A request tells a progress observer where its stages and steps are. At each edge the device is waited for, then a mark
is set, so that no work crosses an edge and every launch lies between two marks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.profiler import ProfilerActivity

from fuseproof.pipelines.divergence.following import StopHere
from fuseproof.pipelines.profiling import events
from fuseproof.pipelines.profiling.chatter import without_remarks
from fuseproof.pipelines.profiling.disturbance import StepClock
from fuseproof.pipelines.profiling.events import Recording
from fuseproof.pipelines.profiling.recording import recorded
from fuseproof.pipelines.profiling.watching import SiteWatch, mark_now
from fuseproof.pipelines.progress import ProgressObserver
from fuseproof.pipelines.stages import DENOISING


@dataclass(frozen=True)
class Window:
    """Which denoising steps to profile, counted over the whole request, and whether every other stage too.

    ``ends_there`` ends the request behind the last of them.
    """

    first: int
    count: int
    all_stages: bool = False
    ends_there: bool = False

    def has(self, step: int) -> bool:
        """Whether ``step`` is one of them."""
        return self.first <= step < self.first + self.count


@dataclass
class ProfilingFollower:
    """A progress observer that profiles one request, and tells ``observer`` everything it is told.

    ``recordings`` are what was seen; ``keep_trace`` is handed each profiler once it has stopped, with the stage's name.
    """

    window: Window
    device: torch.device
    watch: SiteWatch
    observer: ProgressObserver
    keep_trace: Callable[[torch.profiler.profile, str], None] = lambda _profiler, _stage: None
    clock: StepClock = field(default_factory=StepClock)
    recordings: list[Recording] = field(default_factory=list)
    steps_of_request: int = 0
    _profiler: torch.profiler.profile | None = None
    _step: int = 0
    _stage: str = ""
    _stage_calls: dict[str, int] = field(default_factory=dict)

    def beside(self, observer: ProgressObserver) -> ProgressObserver:
        """This follower, telling ``observer`` as well."""
        self.observer = observer
        return self

    def stage_started(self, name: str, total_steps: int | None) -> None:
        """A stage begins: of denoising its first step, of others, where they are wanted, their whole."""
        self.observer.stage_started(name, total_steps)
        self._stage = name
        if name == DENOISING:
            self.steps_of_request += total_steps or 0
            self._begin_step()
        elif self.window.all_stages and self._profiler is None:
            number = self._stage_calls[name] = self._stage_calls.get(name, -1) + 1
            self._start()
            mark_now(f"{events.STEP_BEGINS}{name} {number}")

    def step_finished(self, step: int) -> None:
        """A step was issued."""
        if self.window.has(self._step):
            self._end(f"{DENOISING} {self._step}")
        self._step += 1
        self.observer.step_finished(step)
        if not self.window.has(self._step):
            self._stop(DENOISING)
        if self.window.ends_there and self._step >= self.window.first + self.window.count:
            raise StopHere
        self._begin_step()

    def stage_finished(self, name: str, milliseconds: float) -> None:
        """A stage ended; between two chunks of a clip no step is under way."""
        if name != DENOISING and self._profiler is not None and name in self._stage_calls:
            self._end(f"{name} {self._stage_calls[name]}")
        self._stop(name)
        self.observer.stage_finished(name, milliseconds)

    def close(self) -> None:
        """Stop a profiler that an error left running."""
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            self.watch.is_on = False
            self.clock.end()
            with without_remarks():
                profiler.__exit__(None, None, None)

    def _begin_step(self) -> None:
        if self.window.has(self._step):
            self._start()
            self._synchronise()
            mark_now(f"{events.STEP_BEGINS}{DENOISING} {self._step}")

    def _end(self, what: str) -> None:
        self._synchronise()
        mark_now(f"{events.STEP_ENDS}{what}")

    def _start(self) -> None:
        if self._profiler is None:
            self._synchronise()
            on_cuda = self.device.type == "cuda"
            self._profiler = torch.profiler.profile(
                activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])],
                record_shapes=True,
                profile_memory=True,
                with_stack=True,
            )
            older = torch.empty(1)
            with without_remarks():
                self._profiler.__enter__()
                del older  # torch remarks on the first one given back, so that is to be now
            self.watch.is_on = True
            self.clock.begin()

    def _stop(self, stage: str) -> None:
        if self._profiler is None:
            return
        self._synchronise()
        self.watch.is_on = False
        profiler, self._profiler = self._profiler, None
        self.clock.end()
        with without_remarks():
            profiler.__exit__(None, None, None)
        self.recordings.append(recorded(profiler, self.watch.take(), on_device=self.device.type == "cuda"))
        self.keep_trace(profiler, stage)

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
