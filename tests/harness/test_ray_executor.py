"""Blocks as tasks of a real Ray cluster of this machine, where Ray is installed: results, a killed worker, Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.ray_executor import TASK_NAME, RayPool, cluster_facts
from fuseproof.harness.campaign.remote_blocks import RemoteRunner
from tests.harness.fake_commands import fake_plan
from tests.harness.test_runner import Notes

ray = pytest.importorskip("ray")
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def pool() -> Iterator[RayPool]:
    """A cluster of this test's own, whatever else runs here."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield RayPool(ray, 0, True)
    ray.shutdown()


def create(directory: Path, **candidate: object) -> Campaign:
    plan = fake_plan({}, {"worker_ms": 900, **candidate}, cells=[{"name": "one"}, {"name": "two"}])
    return Campaign.create(directory, plan, command=["x"], environment={}, created="2026-01-01T00:00:00+00:00")


def complete(directory: Path) -> list[int]:
    campaign = Campaign.open(directory)
    return [len(campaign.complete_blocks(cell)) for cell in ("one", "two")]


def when_a_slot_runs(directory: Path, act: Callable[[], None]) -> threading.Thread:
    """Call ``act`` once the second slot of a block is running."""

    def watch() -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not list(directory.glob("slots/*/01-2-B/stderr.log")) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_tasks_record_their_node_and_share_the_folder(pool: RayPool, tmp_path: Path) -> None:
    campaign = create(tmp_path / "c")
    assert "complete" == RemoteRunner(campaign, pool, {"OMP_NUM_THREADS": "1"}).run().status
    slots = Campaign.open(tmp_path / "c").slots()
    assert {"1"} == {slot.environment_overrides["OMP_NUM_THREADS"] for slot in slots}
    assert all(slot.device is not None and slot.device.node and slot.device.card is None for slot in slots)
    assert cluster_facts(pool)["cpus"] == pool.capacity()


def test_a_killed_worker_costs_its_block_one_attempt(pool: RayPool, tmp_path: Path) -> None:
    def kill_a_task() -> None:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if " ".join(process.cmdline()).startswith(f"ray::{TASK_NAME}"):
                    process.kill()

    campaign, notes = create(tmp_path / "c"), Notes()
    watcher = when_a_slot_runs(tmp_path / "c", kill_a_task)
    assert "complete" == RemoteRunner(campaign, pool, {}, notes).run().status
    watcher.join()
    assert [1, 1] == complete(tmp_path / "c")
    assert any("was lost (" in remark and "it starts again" in remark for remark in notes.remarks)
    assert 2 in {slot.attempt for slot in Campaign.open(tmp_path / "c").slots()}


def test_an_interrupt_reaches_the_tasks_and_their_slots(pool: RayPool, tmp_path: Path) -> None:
    campaign = create(tmp_path / "c", mode="hang")
    with Interrupts() as interrupts:
        watcher = when_a_slot_runs(tmp_path / "c", lambda: os.kill(os.getpid(), signal.SIGINT))
        assert "interrupted" == RemoteRunner(campaign, pool, {}, interrupts=interrupts).run().status
    watcher.join()
    kept = [slot for slot in Campaign.open(tmp_path / "c").slots() if slot.pid is not None]
    assert "interrupted" in {slot.state for slot in kept} and "running" not in {slot.state for slot in kept}
    assert not [slot.pid for slot in kept if slot.pid is not None and psutil.pid_exists(slot.pid)]


def test_as_many_blocks_run_at_once_as_there_is_of_what_they_ask_for(pool: RayPool) -> None:
    assert int(ray.cluster_resources().get("GPU", 0)) == RayPool(ray, 1).capacity()
    assert 2 == pool.capacity()
