"""One slot: what is kept of a good one, and a reason of its own for each way to fail."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign import processes
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.slots import ProcessExecutor
from fuseproof.schedules.order import timed_slots
from tests.harness.fake_commands import fake_command, fake_plan

BASELINE_SLOT = timed_slots("cell", 1, 1, "ABBA")[0]


def make_campaign(directory: Path, **options: Any) -> Campaign:
    keys = {key: options.pop(key) for key in ("timeout_s", "arms") if key in options}
    plan = fake_plan(options, {"worker_ms": 1}, **keys)
    return Campaign.create(directory, plan, command=["fuseproof"], environment={}, created="2026-01-01T00:00:00+00:00")


def run_slot(directory: Path, interrupts: Interrupts | None = None, **options: Any) -> SlotRecord:
    campaign = make_campaign(directory, **options)
    return ProcessExecutor().execute(campaign, BASELINE_SLOT, interrupts or Interrupts())


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 0.2)


def test_a_good_slot_keeps_everything(tmp_path: Path) -> None:
    record = run_slot(tmp_path / "campaign", worker_ms=1234, fused_calls=7)
    folder = tmp_path / "campaign" / "slots" / "cell" / "01-1-A"
    assert ("done", None, None, 0) == (record.state, record.reason_code, record.reason, record.returncode)
    assert pytest.approx(1.234e-3) == record.times.worker_s
    assert pytest.approx(1.239e-3) == record.times.client_s
    assert pytest.approx(0.9 * 1.234e-3) == record.times.denoise_s
    assert (8, 8, 1, None) == tuple(
        getattr(record.outputs[0], key) for key in ("width", "height", "frames", "degenerate")
    )
    assert "outputs/image.png" == record.outputs[0].path
    assert 7 == record.fused_calls
    assert {"requests": 1, "denoise_steps": 8, "transformer_calls": 16}.items() <= (record.work or {}).items()
    assert record.memory.peak_rss_mib is not None and record.memory.peak_rss_mib >= 10.5
    assert record.started_monotonic_s is not None and record.ended_monotonic_s is not None
    assert pytest.approx(record.wall_s, abs=1e-5) == record.ended_monotonic_s - record.started_monotonic_s > 0
    assert ("fake arm, call 1",) == record.log_tail
    names = {"result.json", "perf.json", "stdout.log", "stderr.log", "outputs", "frames.sha256", "telemetry.jsonl"}
    assert names == {path.name for path in folder.iterdir()}
    assert f"{record.outputs[0].pixels_sha256}  outputs/image.png\n" == (folder / "frames.sha256").read_text()
    assert [json.loads(line)["processes"] for line in (folder / "telemetry.jsonl").read_text().splitlines()]


def test_what_is_on_disk_is_what_was_returned(tmp_path: Path) -> None:
    record = run_slot(tmp_path / "campaign")
    assert [record] == Campaign.open(tmp_path / "campaign").slots()


def test_commands_are_kept_relative_to_the_campaign(tmp_path: Path) -> None:
    record = run_slot(tmp_path / "campaign")
    assert "slots/cell/01-1-A/perf.json" in record.command
    assert not any(str(tmp_path) in word for word in record.command)


def test_slots_leave_a_core_free_and_fix_the_hash_seed(tmp_path: Path) -> None:
    record = run_slot(tmp_path / "campaign")
    cores = len(os.sched_getaffinity(0))
    assert {"OMP_NUM_THREADS": str(max(1, cores - 1)), "PYTHONHASHSEED": "0"} == dict(record.environment_overrides)


def test_the_arm_may_choose_its_own_threads(tmp_path: Path) -> None:
    code = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(os.environ['OMP_NUM_THREADS'])"
    arm = {"name": "x", "command": f'python -S -c "{code}" {{perf_dump}}', "env": {"OMP_NUM_THREADS": "7"}}
    arms = {"baseline": arm, "candidate": {"name": "y", "command": fake_command()}}
    record = run_slot(tmp_path / "campaign", arms=arms)
    assert "7" == (tmp_path / "campaign" / record.directory / "perf.json").read_text()
    assert "7" == record.environment_overrides["OMP_NUM_THREADS"]


def test_a_slot_has_no_stdin_and_a_session_of_its_own(tmp_path: Path) -> None:
    code = "import os, sys; print(repr(sys.stdin.read()), os.getsid(0) == os.getpid()); sys.exit(5)"
    arm = {"name": "x", "command": f'python -S -c "{code}" {{perf_dump}}'}
    record = run_slot(tmp_path / "c", arms={"baseline": arm, "candidate": {"name": "y", "command": fake_command()}})
    assert ("'' True",) == record.log_tail


@pytest.mark.parametrize(
    ("mode", "code", "named"),
    [
        pytest.param("exit", "EXIT", "exit status 1", id="exit"),
        pytest.param("oom", "OOM", "out of memory", id="out-of-memory"),
        pytest.param("kill", "KILLED", "SIGKILL", id="killed"),
        pytest.param("no-dump", "NO_DUMP", "perf.json", id="no-dump"),
        pytest.param("truncated-dump", "BAD_DUMP", "truncated", id="truncated-dump"),
        pytest.param("old-dump", "BAD_DUMP", "old run", id="dump-says-it-is-old"),
        pytest.param("old-file", "BAD_DUMP", "old run", id="dump-file-is-old"),
        pytest.param("fallback", "FALLBACK", "no native pipeline", id="fallback"),
        pytest.param("truncated-output", "BAD_OUTPUT", "image.png", id="truncated-output"),
        pytest.param("no-output", "NO_OUTPUT", "no output", id="no-output"),
    ],
)
def test_each_failure_has_its_own_reason(tmp_path: Path, mode: str, code: str, named: str) -> None:
    record = run_slot(tmp_path / "campaign", mode=mode)
    assert ("invalid", code) == (record.state, record.reason_code)
    assert named in (record.reason or "")
    assert str(tmp_path) not in (record.reason or "")
    assert None is record.times.worker_s
    assert "invalid" == Campaign.open(tmp_path / "campaign").slots()[0].state


def test_an_arm_that_claims_more_time_than_its_process_had_is_invalid(tmp_path: Path) -> None:
    record = run_slot(tmp_path / "campaign", worker_ms=3_600_000_000)
    assert ("invalid", "IMPOSSIBLE_TIME", None) == (record.state, record.reason_code, record.times.worker_s)
    assert "3600.000 s of worker time" in (record.reason or "")
    assert f"took {record.wall_s:.3f} s" in (record.reason or "")


def test_a_shell_that_starts_the_real_work_has_its_peak(tmp_path: Path) -> None:
    """The shell itself needs about 1 MiB; its child holds 64 MiB until long after the first look."""
    code = "import sys; x = bytearray(64 << 20); sum(1 for _ in range(5 * 10**6)); sys.exit(5)"
    arm = {"name": "x", "command": f"sh -c 'python -S -c \"{code}\"; exit 5' {{perf_dump}}"}
    record = run_slot(tmp_path / "c", arms={"baseline": arm, "candidate": {"name": "y", "command": fake_command()}})
    assert 64 < (record.memory.peak_rss_mib or 0.0) < 160


def test_generate_that_refuses_its_flags_is_a_usage_error(tmp_path: Path) -> None:
    arm = {"name": "x", "flags": "--no-such-flag"}
    record = run_slot(tmp_path / "c", arms={"baseline": arm, "candidate": {"name": "y", "command": fake_command()}})
    assert ("invalid", "USAGE", 2) == (record.state, record.reason_code, record.returncode)


def test_the_log_tail_says_why(tmp_path: Path) -> None:
    record = run_slot(tmp_path / "campaign", mode="exit")
    assert "ValueError: the fake arm was told to fail" == record.log_tail[-1]


@pytest.mark.parametrize("mode", ["hang", "stubborn"])
@pytest.mark.usefixtures("short_grace")
def test_a_hanging_slot_is_killed_at_its_time_out(tmp_path: Path, mode: str) -> None:
    record = run_slot(tmp_path / "campaign", mode=mode, timeout_s=0.3)
    assert ("invalid", "TIMEOUT") == (record.state, record.reason_code)
    assert "0.3 s" in (record.reason or "")
    assert record.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(record.pid, 0)


@pytest.mark.parametrize("mode", ["hang", "stubborn"])
@pytest.mark.usefixtures("short_grace")
def test_an_interrupt_ends_the_child_and_marks_the_slot(tmp_path: Path, mode: str) -> None:
    interrupts = Interrupts()
    timer = threading.Timer(0.3, interrupts.request)
    timer.start()
    record = run_slot(tmp_path / "campaign", interrupts, mode=mode)
    timer.join()
    assert ("interrupted", "INTERRUPTED") == (record.state, record.reason_code)
    assert (-signal.SIGINT if mode == "hang" else -signal.SIGKILL) == record.returncode


def test_processes_left_behind_are_ended(tmp_path: Path) -> None:
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, file=sys.stderr); sys.exit(5)"
    arm = {"name": "x", "command": f'python -S -c "{code}" {{perf_dump}}'}
    record = run_slot(tmp_path / "c", arms={"baseline": arm, "candidate": {"name": "y", "command": fake_command()}})
    status = Path(f"/proc/{record.log_tail[0]}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"


def test_a_result_is_never_overwritten(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path / "campaign")
    first = ProcessExecutor().execute(campaign, BASELINE_SLOT, Interrupts())
    with pytest.raises(FuseproofError, match="already holds a result"):
        ProcessExecutor().execute(campaign, BASELINE_SLOT, Interrupts())
    assert [first] == Campaign.open(tmp_path / "campaign").slots()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("with space", id="space"),
        pytest.param("Ünïcödé 熊猫", id="unicode"),
        pytest.param("-dash", id="leading-dash"),
        pytest.param("a'b\"c$d`e", id="shell-characters"),
        pytest.param("x" * 200, id="long"),
        pytest.param("{perf_dump}", id="placeholder"),
    ],
)
def test_odd_folder_names(tmp_path: Path, name: str) -> None:
    assert "done" == run_slot(tmp_path / name / "campaign").state
