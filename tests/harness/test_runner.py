"""The loop over cells, blocks and slots, with an executor that starts nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign import runner
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.records import BusyProcess, Contention, SlotRecord, SlotTimes
from fuseproof.harness.campaign.runner import CampaignRunner, Outcome, slot_log
from fuseproof.schedules.order import PlannedSlot
from tests.harness.fake_commands import fake_plan


@dataclass
class ScriptedExecutor:
    """Finishes every slot, except those whose id is in ``script``: these get that reason code, once."""

    script: dict[str, str] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()
    times: dict[str, SlotTimes] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)

    def execute(self, campaign: Campaign, slot: PlannedSlot, interrupts: Interrupts) -> SlotRecord:
        self.ran.append(slot.id)
        code = self.script.get(slot.id)
        record = SlotRecord.planned(slot, "done", times=self.times.get(slot.arm, SlotTimes()))
        if code == "DISK":
            raise FuseproofError("No space left on device.")
        if code == "INTERRUPTED":
            interrupts.request()
            record = SlotRecord.planned(slot, "interrupted", reason_code=code)
        elif code:
            record = SlotRecord.planned(
                slot, "invalid", reason_code=code, reason="scripted", log_tail=("x", "it's broken")
            )
        elif slot.id in self.busy:
            disturbance = Contention(0.5, True, 0.1, (BusyProcess("make", 0.4, 77, 0.8),))
            record = record.with_facts(contention=disturbance)
        campaign.save_slot(record)
        return record


@dataclass
class Notes:
    """An observer that writes down what it hears."""

    heard: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def campaign_started(self, campaign: Campaign) -> None:
        self.heard.append("begin")

    def slot_started(self, slot: PlannedSlot) -> None:
        self.heard.append(f"> {slot.id}")

    def slot_finished(self, record: SlotRecord) -> None:
        self.heard.append(f"< {record.id} {record.state}")

    def remark(self, text: str) -> None:
        self.remarks.append(text)


def create(directory: Path, **keys: Any) -> Campaign:
    plan = fake_plan({}, {"worker_ms": 900}, **keys)
    return Campaign.create(directory, plan, command=["x"], environment={}, created="2026-01-01T00:00:00+00:00")


def run(campaign: Campaign, executor: ScriptedExecutor, notes: Notes | None = None) -> Outcome:
    return CampaignRunner(campaign, executor, notes or Notes()).run()


def block(cell: str, number: str, arms: str, warmup: str = "") -> list[str]:
    """Slot ids of one attempt: ``block("c", "01", "ABBA", "A")``."""
    ids = [f"{cell}/{number}-{position}-{arm}" for position, arm in enumerate(arms, start=1)]
    return [f"{cell}/{number}-0-{arm}" for arm in warmup] + ids


def states(campaign: Campaign, ids: Iterable[str]) -> list[str]:
    found = {slot.id: slot.state for slot in Campaign.open(campaign.directory).slots()}
    return [found[slot_id] for slot_id in ids]


def test_an_undisturbed_campaign(tmp_path: Path) -> None:
    campaign, executor = create(tmp_path / "c", blocks=4, warmup_slots=1), ScriptedExecutor()
    assert Outcome("complete") == run(campaign, executor)
    expected = [
        *block("cell", "01", "ABBA", "A"),
        *block("cell", "02", "BAAB"),
        *block("cell", "03", "BAAB"),
        *block("cell", "04", "ABBA"),
    ]
    assert expected == executor.ran
    assert "complete" == Campaign.open(tmp_path / "c").status


def test_every_cell_gets_its_own_warmup(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c", cells=[{"name": "one"}, {"name": "two"}], warmup_slots=1)
    executor = ScriptedExecutor()
    run(campaign, executor)
    assert [*block("one", "01", "ABBA", "A"), *block("two", "01", "ABBA", "A")] == executor.ran


def test_a_lost_block_starts_again_in_the_same_orientation_after_a_warmup(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c", blocks=2, warmup_slots=1)
    executor, notes = ScriptedExecutor({"cell/02-3-A": "KILLED"}), Notes()
    assert Outcome("complete") == run(campaign, executor, notes)
    lost, again = block("cell", "02", "BAA"), block("cell", "02.2", "BAAB", "B")
    assert [*block("cell", "01", "ABBA", "A"), *lost, *again] == executor.ran
    assert ["superseded", "superseded", "invalid"] == states(campaign, lost)
    assert ["cell/01-1-A", "cell/02.2-1-B"] == [found.slots[0].id for found in campaign.complete_blocks("cell")]
    log = tmp_path / "c" / "slots" / "cell" / "02-3-A" / "stderr.log"
    told = f'block 2 of cell starts again: slot cell/02-3-A failed (scripted): "it\'s broken"; its log: {log}'
    assert [told] == notes.remarks


@pytest.mark.parametrize(
    ("retries", "lost", "status"),
    [
        pytest.param(0, ("01-3-B",), "failed", id="none"),
        pytest.param(1, ("01-3-B",), "complete", id="one"),
        pytest.param(2, ("01-3-B", "01.2-3-B"), "complete", id="two"),
        pytest.param(2, ("01-3-B", "01.2-3-B", "01.3-3-B"), "failed", id="two, not enough"),
    ],
)
def test_a_plan_says_how_often_a_lost_block_is_begun_again(
    tmp_path: Path, retries: int, lost: tuple[str, ...], status: str
) -> None:
    campaign = create(tmp_path / "c", blocks=1, retries=retries)
    executor = ScriptedExecutor({f"cell/{name}": "KILLED" for name in lost})
    assert status == run(campaign, executor).status
    assert 1 + min(retries, len(lost)) == campaign.attempts("cell", 1)
    kept = [slot.reason_code for slot in Campaign.open(campaign.directory).slots() if slot.state == "invalid"]
    assert ["KILLED"] * len(lost) == kept


def test_a_block_lost_twice_is_given_up(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c", cells=[{"name": "one"}, {"name": "two"}])
    executor, notes = ScriptedExecutor({"one/01-2-B": "KILLED", "one/01.2-4-A": "TIMEOUT"}), Notes()
    outcome = run(campaign, executor, notes)
    assert ("failed", ["one/01.2-4-A"]) == (outcome.status, [record.id for record in outcome.failures])
    assert "failed" == Campaign.open(tmp_path / "c").status
    assert executor.ran[-4:] == block("two", "01", "ABBA"), "the next cell still runs"
    assert "given up" in notes.remarks[-1]


@pytest.mark.parametrize("code", ["EXIT", "OOM", "TIMEOUT", "NO_DUMP", "FALLBACK"])
def test_an_arm_that_never_worked_is_not_tried_again(tmp_path: Path, code: str) -> None:
    campaign, executor = create(tmp_path / "c"), ScriptedExecutor({"cell/01-2-B": code})
    outcome = run(campaign, executor)
    assert block("cell", "01", "AB") == executor.ran
    assert [code] == [record.reason_code for record in outcome.failures]
    assert [] == campaign.complete_blocks("cell")


def test_an_arm_that_worked_before_gets_a_second_chance(tmp_path: Path) -> None:
    executor = ScriptedExecutor({"cell/01-3-B": "OOM"})
    assert Outcome("complete") == run(create(tmp_path / "c"), executor)
    assert [*block("cell", "01", "ABB"), *block("cell", "01.2", "ABBA")] == executor.ran


def test_a_failing_warmup_slot_loses_the_block_too(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c", warmup_slots=1)
    executor = ScriptedExecutor({"cell/01-0-A": "EXIT"})
    assert "failed" == run(campaign, executor).status
    assert ["cell/01-0-A"] == executor.ran


def test_an_interrupt_keeps_slots_and_the_block_starts_again(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c", blocks=2, warmup_slots=1)
    first = ScriptedExecutor({"cell/02-3-A": "INTERRUPTED"})
    assert Outcome("interrupted") == run(campaign, first)
    assert "interrupted" == Campaign.open(tmp_path / "c").status

    second = ScriptedExecutor()
    assert Outcome("complete") == run(Campaign.open(tmp_path / "c"), second)
    assert block("cell", "02.2", "BAAB", "B") == second.ran
    assert ["superseded", "superseded", "interrupted"] == states(campaign, block("cell", "02", "BAA"))
    assert ["done"] * 4 == states(campaign, block("cell", "01", "ABBA"))


def test_an_interrupt_between_slots_starts_nothing_more(tmp_path: Path) -> None:
    interrupts = Interrupts()
    interrupts.request()
    executor = ScriptedExecutor()
    assert Outcome("interrupted") == CampaignRunner(create(tmp_path / "c"), executor, Notes(), interrupts).run()
    assert [] == executor.ran


def test_a_full_disk_can_be_resumed_from(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c")
    with pytest.raises(FuseproofError, match="No space left"):
        run(campaign, ScriptedExecutor({"cell/01-3-B": "DISK"}))
    executor = ScriptedExecutor()
    assert Outcome("complete") == run(Campaign.open(tmp_path / "c"), executor)
    assert block("cell", "01.2", "ABBA") == executor.ran


def test_a_complete_campaign_has_nothing_to_do(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c")
    run(campaign, ScriptedExecutor())
    again = ScriptedExecutor()
    assert Outcome("complete") == run(Campaign.open(tmp_path / "c"), again)
    assert [] == again.ran


def test_a_disturbed_slot_counts_and_is_remarked_upon(tmp_path: Path) -> None:
    campaign, notes = create(tmp_path / "c"), Notes()
    assert "complete" == run(campaign, ScriptedExecutor(busy=frozenset({"cell/01-2-B"})), notes).status
    assert [
        "slot cell/01-2-B was disturbed: other processes used 50 % of the cores (make (pid 77, 0.8 cores))"
    ] == notes.remarks


def test_a_usage_error_is_never_tried_again_nor_resumed(tmp_path: Path) -> None:
    executor, notes = ScriptedExecutor({"cell/01-3-B": "USAGE"}), Notes()
    assert "failed" == run(create(tmp_path / "c"), executor, notes).status
    assert block("cell", "01", "ABB") == executor.ran
    assert "start a new campaign" in notes.remarks[0] and "resume" not in notes.remarks[0]


def test_the_log_is_named_from_the_present_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slot").mkdir()
    (tmp_path / "slot" / "stderr.log").write_text("why\n")
    monkeypatch.chdir(tmp_path)
    assert Path("slot/stderr.log") == slot_log(tmp_path / "slot")
    monkeypatch.chdir(tmp_path / "slot")
    (tmp_path / "slot" / "stderr.log").write_text("")
    (tmp_path / "slot" / "stdout.log").write_text("why\n")
    assert Path("stdout.log") == slot_log(tmp_path / "slot")


def test_times_that_never_change_are_a_warning_of_the_campaign(tmp_path: Path) -> None:
    campaign, notes = create(tmp_path / "c"), Notes()
    same = SlotTimes(worker_s=0.25, denoise_s=0.2)
    run(campaign, ScriptedExecutor(times={"A": same}), notes)
    (warning,) = Campaign.open(tmp_path / "c").warnings
    assert ("IDENTICAL_TIMES", "cell", "A") == (warning.code, warning.cell, warning.arm)
    assert "all 2 baseline runs of cell claim 250 ms, the same to the digit" == warning.detail
    assert [f"warning: {warning.detail}"] == notes.remarks
    run(campaign, ScriptedExecutor())
    assert (warning,) == campaign.warnings, "a resumed campaign does not say it twice"


def test_the_observer_hears_everything_in_order(tmp_path: Path) -> None:
    notes = Notes()
    run(create(tmp_path / "c"), ScriptedExecutor(), notes)
    slots = block("cell", "01", "ABBA")
    assert ["begin", *(line for slot in slots for line in (f"> {slot}", f"< {slot} done"))] == notes.heard


@pytest.mark.parametrize(
    ("expected", "lines"),
    [
        pytest.param(
            "fuseproof: error: no space", ("fuseproof: error: no space", "  next: free some"), id="advice-last"
        ),
        pytest.param("ValueError: x", ("Traceback", "ValueError: x"), id="traceback"),
        pytest.param("bye", ("hello", "bye"), id="no-error-named"),
    ],
)
def test_the_line_that_names_the_error_is_quoted(expected: str, lines: tuple[str, ...]) -> None:
    assert expected == runner._telling_line(lines)
