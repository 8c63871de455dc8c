"""Blocks side by side: which lane runs what, what a failure, an error and Ctrl-C leave, and how a session goes on."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.block_queue import BlockQueue
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.gpu_records import SlotDevice
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.parallel_blocks import ParallelRunner
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.runner import Outcome
from fuseproof.harness.campaign.session import CampaignSession
from fuseproof.schedules.order import PlannedSlot
from tests.harness.test_runner import Notes, create

FOUR_CELLS = [{"name": name} for name in ("one", "two", "three", "four")]
LIMIT_S = 20.0


@dataclass
class LaneExecutor:
    """One GPU's executor: records its card; ``script`` says which slots end with which code, once."""

    card: str
    script: dict[str, str] = field(default_factory=dict)
    gate: threading.Barrier | None = None
    """The first slot waits here, so that all lanes are at work before one of them is done."""
    ran: list[str] = field(default_factory=list)

    def execute(self, campaign: Campaign, slot: PlannedSlot, interrupts: Interrupts) -> SlotRecord:
        if self.gate is not None and not self.ran:
            self.gate.wait(LIMIT_S)
        self.ran.append(slot.id)
        code = self.script.pop(slot.id, None)
        record = SlotRecord.planned(slot, "done", device=SlotDevice(uuid=self.card))
        if code == "DISK":
            raise FuseproofError("No space left on device.")
        if code == "INTERRUPTED":
            interrupts.request()
        if interrupts.requested:
            record = record.with_facts(state="interrupted", reason_code="INTERRUPTED")
        elif code is not None:
            record = record.with_facts(state="invalid", reason_code=code, reason="scripted")
        campaign.save_slot(record)
        return record


def lanes(script: dict[str, str] | None = None, together: bool = True) -> list[LaneExecutor]:
    gate = threading.Barrier(2) if together else None
    shared = script or {}
    return [LaneExecutor("GPU-a", shared, gate), LaneExecutor("GPU-b", shared, gate)]


def run(campaign: Campaign, executors: Sequence[LaneExecutor], notes: Notes | None = None) -> Outcome:
    return ParallelRunner(campaign, executors, notes or Notes()).run()


def cards_of_attempts(directory: Path) -> dict[tuple[str, int, int], set[str | None]]:
    found: dict[tuple[str, int, int], set[str | None]] = defaultdict(set)
    for slot in Campaign.open(directory).slots():
        found[slot.cell, slot.block, slot.attempt].add(slot.device.card if slot.device else None)
    return found


def complete(directory: Path) -> dict[str, list[int]]:
    campaign = Campaign.open(directory)
    return {cell.name: [found.block for found in campaign.complete_blocks(cell.name)] for cell in campaign.plan.cells}


def test_every_block_has_one_card_and_its_slots_run_in_order(tmp_path: Path) -> None:
    campaign, executors = create(tmp_path / "c", cells=FOUR_CELLS, blocks=2, warmup_slots=1), lanes()
    assert Outcome("complete") == run(campaign, executors)
    assert {1} == {len(cards) for cards in cards_of_attempts(tmp_path / "c").values()}
    assert {cell["name"]: [1, 2] for cell in FOUR_CELLS} == complete(tmp_path / "c")
    for executor in executors:
        blocks = list(dict.fromkeys(slot_id.rsplit("-", 2)[0] for slot_id in executor.ran))
        for block in blocks:
            places = [place for place, slot_id in enumerate(executor.ran) if slot_id.startswith(f"{block}-")]
            assert list(range(places[0], places[-1] + 1)) == places, "nothing runs between the slots of a block"
        cells = [block.split("/")[0] for block in blocks]
        expected = ["1234" if number and cells[number - 1] == cell else "01234" for number, cell in enumerate(cells)]
        positions = "".join(slot_id.split("-")[1] for slot_id in executor.ran)
        assert "".join(expected) == positions, "a lane that stays with its cell is warm for its next block"
    index = [entry["id"] for entry in campaign.to_json()["slots"]]
    assert sorted(index) == sorted([*executors[0].ran, *executors[1].ran])


def test_one_cell_is_shared_by_both_lanes_and_each_begins_with_a_warmup(tmp_path: Path) -> None:
    campaign, executors = create(tmp_path / "c", blocks=4, warmup_slots=1), lanes()
    assert Outcome("complete") == run(campaign, executors)
    assert [1, 1] == [sum(slot_id.split("-")[1] == "0" for slot_id in executor.ran) for executor in executors]
    assert [1, 2, 3, 4] == complete(tmp_path / "c")["cell"]


def test_a_block_that_starts_again_stays_on_its_card(tmp_path: Path) -> None:
    campaign, executors = create(tmp_path / "c", cells=FOUR_CELLS, blocks=2), lanes({"one/02-3-A": "KILLED"})
    notes = Notes()
    assert Outcome("complete") == run(campaign, executors, notes)
    cards = cards_of_attempts(tmp_path / "c")
    assert cards["one", 2, 1] == cards["one", 2, 2] and 1 == len(cards["one", 2, 2])
    assert any("block 2 of one starts again" in remark for remark in notes.remarks)


def test_a_failure_gives_up_its_cell_and_the_others_go_on(tmp_path: Path) -> None:
    campaign, executors = create(tmp_path / "c", cells=FOUR_CELLS, blocks=2), lanes({"two/01-2-B": "EXIT"})
    outcome = run(campaign, executors)
    assert ("failed", ["two/01-2-B"]) == (outcome.status, [record.id for record in outcome.failures])
    assert {"one": [1, 2], "two": [], "three": [1, 2], "four": [1, 2]} == complete(tmp_path / "c")
    assert "failed" == Campaign.open(tmp_path / "c").status


def test_an_interrupt_ends_all_lanes_and_resume_runs_the_rest(tmp_path: Path) -> None:
    campaign, executors = create(tmp_path / "c", cells=FOUR_CELLS, blocks=2), lanes({"one/02-2-A": "INTERRUPTED"})
    assert "interrupted" == run(campaign, executors).status
    before = complete(tmp_path / "c")
    assert [1] == before["one"]
    again = lanes(together=False)
    assert Outcome("complete") == run(Campaign.open(tmp_path / "c"), again)
    assert {cell["name"]: [1, 2] for cell in FOUR_CELLS} == complete(tmp_path / "c")
    assert {1} == {len(cards) for cards in cards_of_attempts(tmp_path / "c").values()}
    assert not [slot_id for executor in again for slot_id in executor.ran if slot_id.startswith("one/01")]


def test_after_an_error_the_other_lane_finishes_its_block_and_takes_no_other(tmp_path: Path) -> None:
    campaign, executors = create(tmp_path / "c", cells=FOUR_CELLS, blocks=2), lanes({"one/01-1-A": "DISK"})
    reached = threading.Event()

    class Waiting(Notes):
        def slot_started(self, slot: PlannedSlot) -> None:
            if slot.id == "two/01-2-B":
                reached.set()

    with pytest.raises(FuseproofError, match="No space left"):
        run(campaign, executors, Waiting())
    assert reached.is_set()
    assert [] == complete(tmp_path / "c")["one"]
    assert [] == [*complete(tmp_path / "c")["three"], *complete(tmp_path / "c")["four"]]
    assert "running" == Campaign.open(tmp_path / "c").status, "so that --resume goes on"


def test_a_queue_keeps_a_lane_at_its_cell_then_gives_it_an_untouched_one_then_helps(tmp_path: Path) -> None:
    queue = BlockQueue(create(tmp_path / "c", cells=FOUR_CELLS[:3], blocks=3))

    def names(taken: tuple[Any, int] | None) -> tuple[str, int] | None:
        return None if taken is None else (taken[0].name, taken[1])

    assert ("one", 1) == names(queue.take())
    assert ("two", 1) == names(queue.take())
    assert ("one", 2) == names(queue.take("one"))
    assert ("three", 1) == names(queue.take())
    assert ("one", 3) == names(queue.take())
    assert ("two", 2) == names(queue.take("one"))


def test_a_campaign_of_lanes_is_not_resumed_without_saying_where(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run(create(tmp_path / "c", blocks=2), lanes({"cell/01-2-B": "INTERRUPTED"}))
    with pytest.raises(UsageError, match="ran side by side") as caught:
        CampaignSession(command=["x"], environment={}).resume(tmp_path / "c", None)
    assert "--gpus 0,1" in str(caught.value.next_step)
