"""What keeps a campaign from starting: a busy GPU, and a slot left over from a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import InvalidMeasurementError
from fuseproof.harness.campaign.folder import Campaign, utc_text
from fuseproof.harness.campaign.readiness import Readiness, refuse_leftovers, unwatched_gpus_remark
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.machine.activity import ActiveProcess, Activity
from fuseproof.harness.machine.gpus import ComputeProcess, GpuSurvey, parse_gpus
from fuseproof.schedules.order import timed_slots
from tests.harness.fake_commands import fake_plan

QUIET = Activity(0.5, 2, 0.1, 0.0, ())
SMI_LINE = (
    "{index}, GPU-{index}, NVIDIA H200, 570.1, 00:1{index}:00.0, 143771, {used}, 0, 30, P0, Enabled, Default, 700, 700"
)


def survey(*used_mib: int, processes: tuple[ComputeProcess, ...] = ()) -> GpuSurvey:
    lines = [SMI_LINE.format(index=index, used=used) for index, used in enumerate(used_mib)]
    return GpuSurvey(parse_gpus("\n".join(lines)), processes)


FOREIGN = (ComputeProcess("GPU-1", 4242, "python", 900.0),)
INSTANCE = "MIG-1234"


def with_facts(**facts: Any) -> GpuSurvey:
    """One idle card, but for ``facts``; a process on its MIG instance where it has one."""
    (gpu,) = survey(4).gpus
    processes = (ComputeProcess(INSTANCE, 4242, "python", None),) if "mig_devices" in facts else ()
    return GpuSurvey((replace(gpu, **facts),), processes)


@pytest.mark.parametrize(
    ("gpus", "visible", "named"),
    [
        pytest.param(survey(4, 4), None, None, id="idle"),
        pytest.param(survey(4, 900, processes=FOREIGN), None, "python (pid 4242)", id="foreign-process"),
        pytest.param(survey(4, 900, processes=FOREIGN), "0", None, id="on-another-card"),
        pytest.param(survey(5120), None, "5120 MiB", id="memory-of-another-container"),
        pytest.param(survey(5120), "", None, id="no-card-visible"),
        pytest.param(with_facts(utilization_percent=40.0), None, "40 % busy", id="at-work"),
        pytest.param(with_facts(utilization_percent=5.0), None, None, id="hardly-at-work"),
        pytest.param(with_facts(memory_used_mib=None, utilization_percent=None), None, None, id="tells-nothing"),
        pytest.param(with_facts(mig_devices=(INSTANCE,)), None, "python (pid 4242)", id="foreign-on-mig-instance"),
        pytest.param(GpuSurvey(reason="no nvidia-smi"), None, None, id="no-gpu"),
    ],
)
def test_busy_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, gpus: GpuSurvey, visible: str | None, named: str | None
) -> None:
    monkeypatch.setattr("fuseproof.harness.campaign.readiness.sample_activity", lambda: QUIET)
    readiness = Readiness(gpus=gpus, cuda_visible_devices=visible)
    if named is None:
        readiness.refuse_busy_machine()
        return
    with pytest.raises(InvalidMeasurementError) as caught:
        readiness.refuse_busy_machine()
    assert named in caught.value.message
    assert "--allow-busy" in (caught.value.next_step or "")


def test_busy_processes_are_named_and_may_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Activity(0.5, 2, 1.3, 0.0, (ActiveProcess("python", 13350, 0.9), ActiveProcess("cc1", 7, 0.4)))
    monkeypatch.setattr("fuseproof.harness.campaign.readiness.sample_activity", lambda: busy)
    with pytest.raises(InvalidMeasurementError) as caught:
        Readiness(gpus=GpuSurvey()).refuse_busy_machine()
    named = "python (pid 13350, 0.9 cores), cc1 (pid 7, 0.4 cores)"
    assert f"Other processes use 1.3 of 2 cores: {named}." == caught.value.message
    assert (caught.value.next_step or "").startswith("Wait until they are done or end them")
    assert (caught.value.next_step or "").endswith("disturbed slots, and slots too short to tell, cap the verdict.")


@pytest.mark.parametrize(
    ("gpus", "program", "is_told"),
    [
        pytest.param(GpuSurvey(reason="nvidia-smi did not answer"), "sh", True, id="hanging"),
        pytest.param(GpuSurvey(reason="was not found"), "no-such-program", False, id="no-driver"),
        pytest.param(survey(4), "sh", False, id="seen"),
    ],
)
def test_gpus_that_nobody_can_look_at_are_told(gpus: GpuSurvey, program: str, is_told: bool) -> None:
    assert is_told == (unwatched_gpus_remark(gpus, program) is not None)


def running_slot(directory: Path, **facts: Any) -> Campaign:
    plan = fake_plan({}, {"worker_ms": 900})
    campaign = Campaign.create(directory, plan, command=["x"], environment={}, created="2026-01-01T00:00:00+00:00")
    campaign.save_slot(SlotRecord.planned(timed_slots("cell", 1, 1, "ABBA")[0], **facts))
    return campaign


def test_a_leftover_slot_is_refused_until_it_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as left:
        campaign = running_slot(tmp_path / "c", pid=left.pid, started=utc_text(datetime.now(UTC)))
        with pytest.raises(InvalidMeasurementError, match=str(left.pid)):
            refuse_leftovers(campaign)
        assert left.stdin is not None
        left.stdin.close()
        os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet collected
        refuse_leftovers(campaign)
        left.wait()
        refuse_leftovers(campaign)


def test_what_a_slot_has_started_is_left_over_too(tmp_path: Path) -> None:
    """The slot itself has ended and nobody has collected it; a process of its group reads on."""
    starts_one = "import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', 'input()'])"
    command = [sys.executable, "-S", "-c", starts_one]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as left:
        campaign = running_slot(tmp_path / "c", pid=left.pid, started=utc_text(datetime.now(UTC)))
        os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(InvalidMeasurementError, match=f"runs as process {left.pid}"):
            refuse_leftovers(campaign)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(
            {"pid": os.getpid(), "started": utc_text(datetime.now(UTC) - timedelta(days=1))}, id="other-start"
        ),
        pytest.param({"pid": None}, id="no-process-id"),
        pytest.param({"pid": 2**22 + 1, "started": utc_text(datetime.now(UTC))}, id="no-such-process"),
    ],
)
def test_a_process_id_used_again_is_no_leftover(tmp_path: Path, facts: dict[str, Any]) -> None:
    refuse_leftovers(running_slot(tmp_path / "c", **facts))
