"""Who is named as busy: others that a person can wait for or end."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fuseproof.harness.machine import activity
from fuseproof.harness.machine.activity import ActiveProcess, named_process, pids_never_listed, sample_activity

NOBODY = 2**23
"""Above every process id of this machine."""


@pytest.mark.parametrize(
    ("text", "pid", "cores"),
    [
        pytest.param("python (pid 13350, 0.9 cores)", 13350, 0.94, id="all"),
        pytest.param("python (pid 13350)", 13350, None, id="no-use"),
        pytest.param("python", None, None, id="name-alone"),
    ],
)
def test_names(text: str, pid: int | None, cores: float | None) -> None:
    assert text == named_process("python", pid, cores)


def test_the_first_process_and_our_own_line_are_never_listed() -> None:
    assert {1, os.getpid(), os.getppid()} <= pids_never_listed()


def test_only_others_of_at_least_one_percent_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    used_s = {1: 9.0, os.getppid(): 9.0, NOBODY + 1: 0.45, NOBODY + 2: 0.004, NOBODY + 3: 0.2, NOBODY + 4: 0.3}
    looks = iter([dict.fromkeys(used_s, 0.0), used_s])

    def processes(attributes: list[str]) -> list[SimpleNamespace]:
        def facts(seconds: float) -> dict[str, object]:
            return {"name": "x", "cpu_times": SimpleNamespace(user=seconds, system=0.0), "create_time": 1.0}

        return [SimpleNamespace(pid=pid, info=facts(seconds)) for pid, seconds in next(looks).items()]

    clock = iter([10.0, 10.5])
    monkeypatch.setattr(activity.psutil, "process_iter", processes)
    monkeypatch.setattr(activity.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(activity, "is_kernel_thread", lambda pid: pid == NOBODY + 4)
    worst = sample_activity(sleep=lambda seconds: None).worst
    assert (ActiveProcess("x", NOBODY + 1, 0.9), ActiveProcess("x", NOBODY + 3, 0.4)) == worst
    assert f"x (pid {NOBODY + 1}, 0.9 cores)" == str(worst[0])


@pytest.mark.parametrize(
    ("is_kernel", "flags"),
    [
        pytest.param(True, 69238880, id="kthreadd-child"),
        pytest.param(False, 4194560, id="program"),
    ],
)
def test_kernel_threads_are_known_by_their_flag(monkeypatch: pytest.MonkeyPatch, is_kernel: bool, flags: int) -> None:
    line = f"7 (odd) name)) S 2 0 0 0 -1 {flags} 0 0 0"
    monkeypatch.setattr(Path, "read_text", lambda self, **options: line)
    assert is_kernel is activity.is_kernel_thread(7)


def test_a_process_that_is_gone_is_no_kernel_thread() -> None:
    assert not activity.is_kernel_thread(NOBODY)
    assert not activity.is_kernel_thread(os.getpid())
