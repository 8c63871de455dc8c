"""Bars on a terminal, silence elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fuseproof.cli.progress import stage_progress
from fuseproof.pipelines.progress import SILENT, ProgressObserver


def run_two_stages(observer: ProgressObserver) -> None:
    observer.stage_started("TextEncodingStage", None)
    observer.stage_finished("TextEncodingStage", 12.0)
    observer.stage_started("DenoisingStage", 2)
    observer.step_finished(0)
    observer.step_finished(1)
    observer.stage_finished("DenoisingStage", 2345.0)


def test_a_terminal_sees_stages_steps_and_times() -> None:
    screen = io.StringIO()
    with stage_progress(console=Console(file=screen, force_terminal=True, width=100)) as observer:
        run_two_stages(observer)
    shown = screen.getvalue()
    assert "TextEncodingStage  0.01 s" in shown
    assert "DenoisingStage  2.35 s" in shown or "DenoisingStage  2.34 s" in shown
    assert "2/2" in shown


def test_a_stage_left_open_by_an_error_does_not_stop_the_next() -> None:
    screen = io.StringIO()
    with stage_progress(console=Console(file=screen, force_terminal=True, width=100)) as observer:
        observer.stage_started("TextEncodingStage", None)
        run_two_stages(observer)
        observer.step_finished(0)
        observer.stage_finished("nothing is open", 1.0)
    assert "DenoisingStage" in screen.getvalue()


def test_a_pipe_sees_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with stage_progress() as observer:
        assert observer is SILENT
        run_two_stages(observer)
    assert ("", "") == capfd.readouterr()


def test_a_quiet_log_level_sees_nothing() -> None:
    with stage_progress(False, Console(file=io.StringIO(), force_terminal=True)) as observer:
        assert observer is SILENT
