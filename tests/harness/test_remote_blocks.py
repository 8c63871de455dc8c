"""Blocks on other machines, with a pool that runs tasks here: what losses cost, what interrupts and errors leave."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign import ray_executor
from fuseproof.harness.campaign.block_tasks import BlockResult, BlockTask, run_block_task
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.gpu_records import SlotDevice
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.remote_blocks import LostBlockError, RemoteRunner
from fuseproof.harness.campaign.runner import Outcome
from fuseproof.schedules.order import PlannedSlot, timed_slots
from tests.harness.test_runner import Notes, ScriptedExecutor, create, states

TWO_CELLS = [{"name": "one"}, {"name": "two"}]


class MachineGoneError(Exception):
    """The executor's machine goes away while a slot runs."""


@dataclass
class NodeExecutor(ScriptedExecutor):
    """A scripted executor on a node; the code GONE leaves the slot as it stands when a machine loses its power."""

    node: str = "n1"

    def execute(self, campaign: Campaign, slot: PlannedSlot, interrupts: Interrupts) -> SlotRecord:
        if self.script.get(slot.id) == "GONE":
            self.ran.append(slot.id)
            campaign.save_slot(SlotRecord.planned(slot, "running", device=SlotDevice(node=self.node)))
            raise MachineGoneError
        return super().execute(campaign, slot, interrupts)


@dataclass
class FakePool:
    """Runs a task when it is waited for, after a journey through pickle, as a cluster does."""

    executor: NodeExecutor
    lanes: int = 2
    submitted: list[str] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    _tasks: dict[object, BlockTask] = field(default_factory=dict)
    _results: dict[object, BlockResult | Exception] = field(default_factory=dict)

    def capacity(self) -> int:
        return self.lanes

    def submit(self, task: BlockTask) -> object:
        self.submitted.append(task.name)
        handle = object()
        self._tasks[handle] = pickle.loads(pickle.dumps(task))
        return handle

    def wait(self, handles: Sequence[object], timeout_s: float) -> Sequence[object]:
        for handle in handles[:1]:
            try:
                self._results[handle] = run_block_task(self._tasks[handle], self.executor, Interrupts())
            except MachineGoneError:
                self._results[handle] = LostBlockError("the node died")
            except FuseproofError as error:
                self._results[handle] = error
        return handles[:1]

    def result(self, handle: object) -> BlockResult:
        result = self._results[handle]
        if isinstance(result, Exception):
            raise result
        return result

    def interrupt(self, handles: Sequence[object], at_once: bool) -> None:
        self.ended.append(at_once)


def run(campaign: Campaign, pool: FakePool, notes: Notes | None = None) -> Outcome:
    return RemoteRunner(campaign, pool, {}, notes or Notes()).run()


def test_tasks_leave_the_same_folder_as_a_campaign_of_one_lane(tmp_path: Path) -> None:
    campaign, pool, notes = create(tmp_path / "c", cells=TWO_CELLS, blocks=2), FakePool(NodeExecutor()), Notes()
    assert Outcome("complete") == run(campaign, pool, notes)
    assert ["one/01", "two/01", "one/02", "two/02"] == pool.submitted
    again = Campaign.open(tmp_path / "c")
    assert ("complete", 16) == (again.status, len(again.slots()))
    assert [slot.id for slot in again.slots()] == [entry["id"] for entry in again.to_json()["slots"]]
    assert 16 == sum(line.startswith("< ") for line in notes.heard)


def test_every_task_begins_with_the_warmup(tmp_path: Path) -> None:
    pool = FakePool(NodeExecutor(), lanes=1)
    run(create(tmp_path / "c", blocks=2, warmup_slots=1), pool)
    assert ["cell/01-0-A", "cell/02-0-B"] == [name for name in pool.executor.ran if "-0-" in name]


def test_a_block_that_is_lost_with_its_node_runs_again_as_the_next_attempt(tmp_path: Path) -> None:
    campaign, notes = create(tmp_path / "c", blocks=2), Notes()
    pool = FakePool(NodeExecutor({"cell/01-3-B": "GONE"}), lanes=1)
    assert Outcome("complete") == run(campaign, pool, notes)
    lost = ["cell/01-1-A", "cell/01-2-B", "cell/01-3-B"]
    assert ["superseded", "superseded", "interrupted"] == states(campaign, lost)
    assert ["cell/01", "cell/01", "cell/02"] == pool.submitted
    assert ["block 1 of cell was lost (the node died); it starts again"] == notes.remarks
    assert [2, 1] == [found.attempt for found in Campaign.open(tmp_path / "c").complete_blocks("cell")]


def test_a_block_that_is_lost_again_and_again_ends_the_session(tmp_path: Path) -> None:
    script = dict.fromkeys(("cell/01-1-A", "cell/01.2-1-A", "cell/01.3-1-A"), "GONE")
    with pytest.raises(FuseproofError, match=r"Block 1 of cell was lost 3 times: the node died\."):
        run(create(tmp_path / "c"), FakePool(NodeExecutor(script)))


def test_a_failure_gives_up_its_cell(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c", cells=TWO_CELLS, blocks=2)
    outcome = run(campaign, FakePool(NodeExecutor({"one/01-2-B": "EXIT"}), lanes=1))
    assert ("failed", ["one/01-2-B"]) == (outcome.status, [record.id for record in outcome.failures])
    assert [1, 2] == [found.block for found in Campaign.open(tmp_path / "c").complete_blocks("two")]


def test_an_interrupt_ends_the_tasks_and_resume_runs_the_rest(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c", cells=TWO_CELLS, blocks=2)
    pool = FakePool(NodeExecutor({"one/02-2-A": "INTERRUPTED"}))
    assert "interrupted" == run(campaign, pool).status
    assert [False] == pool.ended[:1], "running tasks are asked to end in order"
    assert "interrupted" == Campaign.open(tmp_path / "c").status
    assert Outcome("complete") == run(Campaign.open(tmp_path / "c"), FakePool(NodeExecutor()))


def test_a_slot_that_still_runs_when_its_task_is_called_ended_is_waited_for(tmp_path: Path) -> None:
    campaign, interrupts = create(tmp_path / "c"), Interrupts()
    slot = timed_slots("cell", 1, 1, "ABBA")[0]
    ended: list[float] = []

    class Slow(FakePool):
        def wait(self, handles: Sequence[object], timeout_s: float) -> Sequence[object]:
            campaign.save_slot(SlotRecord.planned(slot, "running"))
            interrupts.request()
            return ()

    def sleep(seconds: float) -> None:
        ended.append(seconds)
        if len(ended) == 2:
            campaign.save_slot(SlotRecord.planned(slot, "interrupted", reason_code="INTERRUPTED"))

    runner = RemoteRunner(campaign, Slow(NodeExecutor()), {}, Notes(), interrupts, sleep)
    assert "interrupted" == runner.run().status
    assert 2 == len(ended)
    assert ["interrupted"] == states(campaign, [slot.id])


def test_an_error_of_one_task_is_raised_after_the_others(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c", cells=TWO_CELLS)
    with pytest.raises(FuseproofError, match="No space left"):
        run(campaign, FakePool(NodeExecutor({"one/01-2-B": "DISK"})))
    again = Campaign.open(tmp_path / "c")
    assert [[], [1]] == [[found.block for found in again.complete_blocks(cell)] for cell in ("one", "two")]


@pytest.mark.parametrize(
    ("version", "folder", "words"),
    [
        pytest.param("0.0.0", "c", "the campaign was started with 0.0.0", id="version"),
        pytest.param(None, "elsewhere", "does not see the campaign folder", id="folder"),
    ],
)
def test_a_node_that_cannot_take_part_says_why(tmp_path: Path, version: str | None, folder: str, words: str) -> None:
    task = BlockTask.of(create(tmp_path / "c"), "cell", 1, {})
    changes = {"directory": tmp_path / folder} | ({"fuseproof_version": version} if version else {})
    with pytest.raises(FuseproofError, match=words):
        run_block_task(BlockTask(**{**task.__dict__, **changes}), NodeExecutor(), Interrupts())


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"needs Ray 2\.60\.0 or later") as caught:
        ray_executor.load_ray()
    assert "pip install 'fuseproof[ray]'" == caught.value.next_step


@dataclass
class RayWithoutCluster:
    """What of Ray joins a cluster, on a machine where none answers."""

    asked: list[str] = field(default_factory=list)

    def init(self, address: str, **settings: object) -> None:
        self.asked.append(address)
        if address == "auto":
            raise ConnectionError("Could not find any running Ray instance.\nPlease specify one.")


def test_a_local_cluster_stands_in_only_where_no_other_was_asked_for() -> None:
    ray = RayWithoutCluster()
    assert "started for this campaign because none was running" in ray_executor.joined_cluster(ray, None, {})
    assert ["auto", "local"] == ray.asked
    with pytest.raises(FuseproofError, match="cluster of RAY_ADDRESS cannot be joined: Could not find any running"):
        ray_executor.joined_cluster(ray, "10.0.0.1:6379", {})
