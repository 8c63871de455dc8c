"""What a pipeline tells the outside while it runs. Nothing here may touch the device."""

from __future__ import annotations

from typing import Protocol


class ProgressObserver(Protocol):
    """Told about stages and steps on the host's clock; must return at once."""

    def stage_started(self, name: str, total_steps: int | None) -> None:
        """A stage begins; ``total_steps`` is None where it has no steps."""

    def step_finished(self, step: int) -> None:
        """Step ``step`` (from 0) of the current stage was issued."""

    def stage_finished(self, name: str, milliseconds: float) -> None:
        """A stage ended after ``milliseconds``, device-synchronised."""


class SilentObserver:
    """Tells nobody."""

    def stage_started(self, name: str, total_steps: int | None) -> None:
        """Ignore it."""

    def step_finished(self, step: int) -> None:
        """Ignore it."""

    def stage_finished(self, name: str, milliseconds: float) -> None:
        """Ignore it."""


SILENT: ProgressObserver = SilentObserver()
