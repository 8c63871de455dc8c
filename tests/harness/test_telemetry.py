"""What the sampler says about memory and about others, from made-up counters and from one real child."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fuseproof.harness.campaign import telemetry
from fuseproof.harness.campaign.records import BusyProcess, SlotRecord
from fuseproof.harness.campaign.telemetry import OtherProcesses, ProcessSampler, descendants, process_memory_mib
from fuseproof.harness.machine.usage import MachineUse, busy_threshold, shortest_measurable_s
from fuseproof.schedules.order import timed_slots

NOBODY = 2**23
"""Above every process id of this machine."""
BIG_CHILD = "import sys; x = bytearray(64 << 20); del x; print('ready', flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("cores", "threshold"),
    [
        pytest.param(1, 0.5, id="one-core"),
        pytest.param(2, 0.25, id="two-cores"),
        pytest.param(5, 0.1, id="five-cores"),
        pytest.param(128, 0.1, id="many-cores"),
    ],
)
def test_busy_threshold_is_half_a_core_or_a_tenth(cores: int, threshold: float) -> None:
    assert pytest.approx(threshold) == busy_threshold(cores)


def sampled(  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
    *,
    wall_s: float,
    machine_s: float,
    ours_s: float,
    steal_s: float = 0.0,
    cores: int = 2,
    quota: float | None = None,
    quota_s: float = 0.0,
):
    """A contention after ``wall_s``, in which the cores worked ``machine_s``, we ``ours_s``, our quota ``quota_s``."""
    start_s = None if quota is None else 3.0
    state = SimpleNamespace(now=100.0, machine=MachineUse(50.0, 1.0, start_s), own=7.0)
    monkeypatch.setattr(telemetry, "capacity_cores", lambda cores: cores if quota is None else min(cores, quota))
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: state.now)
    monkeypatch.setattr(telemetry, "machine_use", lambda: state.machine)
    monkeypatch.setattr(telemetry, "own_cpu_s", lambda: state.own)
    monkeypatch.setattr(telemetry, "usable_cores", lambda: list(range(cores)))
    sampler = ProcessSampler()
    state.now += wall_s
    state.machine = MachineUse(50.0 + machine_s, 1.0 + steal_s, None if start_s is None else start_s + quota_s)
    state.own += ours_s
    return sampler.stop().contention


@pytest.mark.parametrize(
    ("machine_s", "ours_s", "share", "busy"),
    [
        pytest.param(10.0, 10.0, 0.0, False, id="only-us"),
        pytest.param(15.0, 10.0, 0.25, False, id="at-the-threshold"),
        pytest.param(15.2, 10.0, 0.26, True, id="above-the-threshold"),
        pytest.param(20.0, 10.0, 0.5, True, id="one-other-core"),
        pytest.param(9.9, 10.0, 0.0, False, id="counters-disagree"),
    ],
)
def test_others_are_what_is_left(
    monkeypatch: pytest.MonkeyPatch, machine_s: float, ours_s: float, share: float, busy: bool
) -> None:
    contention = sampled(monkeypatch, wall_s=10.0, machine_s=machine_s, ours_s=ours_s)
    assert (pytest.approx(share), busy, 0.25) == (contention.other_cpu_share, contention.busy, contention.threshold)


@pytest.mark.parametrize(
    ("machine_s", "quota_s", "share", "busy"),
    [
        pytest.param(20.0 + 50.0, 20.0, 0.0, False, id="others-on-the-cores-that-the-quota-leaves-idle"),
        pytest.param(20.0 + 630.0, 20.0, 0.5, True, id="others-on-all-cores-but-one"),
        pytest.param(20.0 + 10.0, 30.0, 0.5, True, id="others-in-the-same-container"),
        pytest.param(20.0, 20.0, 0.0, False, id="only-us"),
    ],
)
def test_under_a_cpu_quota_only_what_it_costs_the_slot_counts(
    monkeypatch: pytest.MonkeyPatch, machine_s: float, quota_s: float, share: float, busy: bool
) -> None:
    """64 cores, a quota of 2, ten seconds, of which the slot itself used all that it may."""
    seen = sampled(monkeypatch, wall_s=10.0, machine_s=machine_s, ours_s=20.0, cores=64, quota=2.0, quota_s=quota_s)
    assert (pytest.approx(share), busy, 0.25) == (seen.other_cpu_share, seen.busy, seen.threshold)


def test_steal_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    contention = sampled(monkeypatch, wall_s=10.0, machine_s=10.0, ours_s=10.0, steal_s=4.0)
    assert (pytest.approx(0.2), False) == (contention.steal_share, contention.busy)


def test_a_slot_too_short_to_tell_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    contention = sampled(monkeypatch, wall_s=0.06, machine_s=0.12, ours_s=0.0)
    assert (None, None, 0.25) == (contention.other_cpu_share, contention.busy, contention.threshold)


@pytest.mark.parametrize(("others_s", "busy"), [(0.0, False), (0.02, False), (0.10, True), (0.08, True)])
def test_a_tenth_of_a_second_tells_a_busy_core_from_rounded_counters(
    monkeypatch: pytest.MonkeyPatch, others_s: float, busy: bool
) -> None:
    """Two looks round by 0.02 s on two cores; another program that fills a core for 0.1 s is more than that."""
    contention = sampled(monkeypatch, wall_s=0.1, machine_s=0.1 + others_s, ours_s=0.1)
    assert busy is contention.busy


@pytest.mark.parametrize(
    ("cores", "capacity", "expected_s"),
    [
        pytest.param(2, 2.0, 0.08, id="two-cores"),
        pytest.param(4, 4.0, 0.1131, id="four-cores"),
        pytest.param(128, 128.0, 0.05, id="many-cores-never-less-than-a-start"),
        pytest.param(64, 2.0, 0.4525, id="a-quota-of-two-of-many"),
    ],
)
def test_the_shortest_slot_that_is_measured_depends_on_the_counters(
    cores: int, capacity: float, expected_s: float
) -> None:
    assert pytest.approx(expected_s, abs=1e-4) == shortest_measurable_s(cores, capacity)


def test_records_of_earlier_versions_are_read() -> None:
    old = {"other_cpu_share": None, "busy": False, "worst": [{"name": "make", "cpu_share": 0.4}]}
    planned = SlotRecord.planned(timed_slots("cell", 1, 1, "ABBA")[0]).to_json()
    found = SlotRecord.from_json(planned | {"contention": old}).contention
    assert (False, (BusyProcess("make", 0.4),)) == (found.busy, found.worst)


def test_peak_memory_is_the_childs_high_water_mark() -> None:
    """The block is freed before anybody looks, and this process's own size must not be inherited."""
    ballast = bytearray(256 << 20)
    command = [sys.executable, "-S", "-E", "-c", BIG_CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        sampler = ProcessSampler()
        sampler.start(child.pid)
        sizes = process_memory_mib(child.pid)
        child.stdin.close()
        child.wait()
        seen = sampler.stop()
    assert sizes is not None
    assert 64 < sizes[0] < 160
    assert 64 < (seen.peak_rss_mib or 0) < 160
    assert seen.samples and len(ballast) == 256 << 20


def test_a_process_that_is_gone_has_no_memory() -> None:
    child = subprocess.run(
        [sys.executable, "-S", "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    assert process_memory_mib(int(child.stdout)) is None


def test_the_worst_others_are_named_without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(pid: int, name: str, used_s: float) -> SimpleNamespace:
        times = SimpleNamespace(user=used_s, system=0.0)
        return SimpleNamespace(pid=pid, info={"name": name, "cpu_times": times, "create_time": 1.0})

    looks = iter(
        [
            [
                process(1, "init", 5.0),
                process(NOBODY + 2, "make", 1.0),
                process(NOBODY + 3, "slot", 0.0),
                process(os.getpid(), "me", 0.0),
            ],
            [
                process(1, "init", 9.0),
                process(NOBODY + 2, "make", 9.0),
                process(NOBODY + 3, "slot", 9.0),
                process(NOBODY + 4, "idler", 0.19),
                process(os.getppid(), "shell", 9.0),
                process(os.getpid(), "me", 9.0),
            ],
        ]
    )
    monkeypatch.setattr(telemetry.psutil, "process_iter", lambda attributes: next(looks))
    others = OtherProcesses()
    others.scan({NOBODY + 3})
    others.scan({NOBODY + 3})
    assert (BusyProcess("make", 0.4, NOBODY + 2, 0.8),) == others.worst(10.0, 2)


def test_a_peak_read_before_the_program_was_loaded_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "process_memory_mib", lambda pid: (0.0039, 0.0039))
    sampler = ProcessSampler()
    sampler.start(os.getpid())
    assert None is sampler.stop().peak_rss_mib


def test_descendants_are_found_below_a_shell() -> None:
    command = ["sh", "-c", "cat; exit 0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(b"started")
        child.stdin.flush()
        assert b"started" == child.stdout.read(7)
        assert 1 == len(descendants(child.pid))
        child.stdin.close()


def test_a_process_that_ends_while_it_is_looked_at_is_no_fault(monkeypatch, tmp_path) -> None:
    """Between finding a folder of /proc and reading it, the process may be gone; the sampler must live on."""
    (tmp_path / "self" / "task" / str(os.getpid())).mkdir(parents=True)
    (tmp_path / "self" / "task" / str(os.getpid()) / "children").write_text("")
    (tmp_path / "1" / "task" / "1").mkdir(parents=True)
    (tmp_path / "1" / "task" / "1" / "children").write_text("2 3 ")
    (tmp_path / "1" / "task" / "4").mkdir()
    monkeypatch.setattr(telemetry, "_PROC", tmp_path)
    real = Path.iterdir

    def vanishing(path: Path) -> Iterator[Path]:
        if path.parent.name in ("2", "3"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return real(path)

    monkeypatch.setattr(Path, "iterdir", vanishing)
    assert [2, 3] == descendants(1)
