"""What reaches stderr while the profiler starts and stops."""

from __future__ import annotations

import os

import pytest
import torch

from fuseproof.pipelines.profiling.chatter import kept, without_remarks
from fuseproof.pipelines.profiling.following import ProfilingFollower, Window
from fuseproof.pipelines.profiling.watching import SiteWatch
from fuseproof.pipelines.progress import SILENT

REMARKS = (
    b"USDT:2026-11-30 17:31:44 27997:27997 SyncActivityProfilerHandler.cpp:52] profiler_start\n",
    b"USDT:2026-11-30 17:31:44 27997:27997 SyncActivityProfilerHandler.cpp:59] profiler_stop\n",
    b"[W1130 17:31:44.484296650 CPUAllocator.cpp:245] Memory block of unknown size was allocated before the profiling "
    b"started, profiler results will not include the deallocation event\n",
)
FAULT = b"ERROR:2026-11-30 17:31:44 27997:27997 CuptiActivityApi.cpp:1] CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\n"


def test_only_remarks_are_dropped():
    assert FAULT + b"no end of line" == kept(REMARKS[0] + FAULT + REMARKS[2] + REMARKS[1] + b"no end of line")


def test_a_fault_is_written_even_where_an_error_follows(capfd):
    with pytest.raises(ValueError, match="it broke"), without_remarks():
        os.write(2, REMARKS[0] + FAULT)
        raise ValueError("it broke")
    assert FAULT.decode() == capfd.readouterr().err


def test_a_profiled_stretch_says_nothing_of_the_profiler(capfd):
    follower = ProfilingFollower(Window(0, 1), torch.device("cpu"), SiteWatch({}), SILENT)
    older = torch.ones(1000)
    follower.stage_started("DenoisingStage", 1)
    del older
    os.write(2, b"of the request\n")
    follower.step_finished(0)
    follower.stage_finished("DenoisingStage", 1.0)
    assert "of the request\n" == capfd.readouterr().err


def test_a_program_without_stderr_is_profiled_all_the_same(monkeypatch):
    def closed(_descriptor: int) -> int:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(os, "dup", closed)
    with without_remarks():
        ran = True
    assert ran
