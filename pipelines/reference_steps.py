"""What stands in for diffusers' progress bar while its own loop runs: the steps are timed where the bar would move."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from fuseproof.pipelines.stages import StageClock


class StepWatch:
    """A progress bar with one ``update`` a step; ``finished`` is called when the loop has ended without an error."""

    def __init__(self, clock: StageClock, finished: Callable[[], None]) -> None:
        self._clock = clock
        self._finished = finished

    def __enter__(self) -> StepWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finished()

    def update(self) -> None:
        """One step was issued."""
        self._clock.step_finished()
