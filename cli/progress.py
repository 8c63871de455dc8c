"""A progress bar per stage and step on stderr; nothing at all when stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fuseproof.pipelines.progress import SILENT, ProgressObserver

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

REFRESHES_PER_SECOND = 2
"""Redrawing costs a share of a core (4.5 % at 4 Hz on two cores), which a measurement must not pay."""


class StageBars:
    """Draws one bar for each stage that a pipeline reports; stages without steps pulse until they end."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar: TaskID | None = None

    def stage_started(self, name: str, total_steps: int | None) -> None:
        """Open a bar; a stage that was left open by an error is closed as it stands."""
        self._stop_bar()
        self._bar = self._progress.add_task(name, total=total_steps)

    def step_finished(self, step: int) -> None:
        """Move the current bar to ``step + 1``."""
        if self._bar is not None:
            self._progress.update(self._bar, completed=step + 1)

    def stage_finished(self, name: str, milliseconds: float) -> None:
        """Fill the current bar and write its time beside it."""
        if self._bar is None:
            return
        total = self._progress.tasks[self._progress.task_ids.index(self._bar)].total or 1
        label = f"{name}  {milliseconds / 1e3:.2f} s"
        self._progress.update(self._bar, total=total, completed=total, description=label)
        self._stop_bar()

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._progress.stop_task(self._bar)
        self._bar = None


@contextmanager
def stage_progress(is_wanted: bool = True, console: Console | None = None) -> Iterator[ProgressObserver]:
    """An observer for a pipeline: bars on an interactive stderr, silence elsewhere."""
    if not is_wanted or (console is None and not sys.stderr.isatty()):
        yield SILENT
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns,
        console=console or Console(stderr=True),
        refresh_per_second=REFRESHES_PER_SECOND,
        redirect_stdout=False,  # or results for a pipe would end up on the terminal
        redirect_stderr=False,
    ) as progress:
        yield StageBars(progress)
