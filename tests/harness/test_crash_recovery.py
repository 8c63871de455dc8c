"""A slot that was begun and never recorded, and files that never got their name, when a campaign goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseproof.harness.campaign.crash_recovery import CAUSE, recover
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.schedules.order import timed_slots
from tests.harness.fake_commands import fake_plan


def campaign(folder: Path) -> Campaign:
    """One block of two, whose first slot has been recorded."""
    plan = fake_plan({}, {"worker_ms": 900}, blocks=2, warmup_slots=2)
    made = Campaign.create(folder, plan, command=["x"], environment={}, created="2026-01-01T00:00:00+00:00")
    made.save_slot(SlotRecord.planned(timed_slots("cell", 1, 1, "ABBA")[0], state="done"))
    return made


@pytest.mark.parametrize(
    ("name", "label", "kind"),
    [
        pytest.param("01-2-B", "B1", "timed", id="timed"),
        pytest.param("02-0-A", "warm-up A", "warmup", id="warm-up"),
        pytest.param("02-1-B", "B1", "timed", id="mirrored-block"),
        pytest.param("01.3-4-A", "A2", "timed", id="third-attempt"),
    ],
)
def test_a_slot_that_was_begun_and_not_recorded_is_an_interrupted_one(
    tmp_path: Path, name: str, label: str, kind: str
) -> None:
    found = campaign(tmp_path / "c")
    folder = tmp_path / "c" / "slots" / "cell" / name
    (folder / "outputs").mkdir(parents=True)
    (folder / "stdout.log").write_text("its first words")
    assert (f"cell/{name}",) == recover(found)
    record = {slot.id: slot for slot in Campaign.open(tmp_path / "c").slots()}[f"cell/{name}"]
    assert (label, kind, "interrupted", "INTERRUPTED", CAUSE) == (
        record.label, record.kind, record.state, record.reason_code, record.reason
    )  # fmt: skip
    assert "its first words" == (folder / "stdout.log").read_text()
    assert () == recover(Campaign.open(tmp_path / "c"))


@pytest.mark.parametrize("name", ["01-2-A", "01-9-B", "00-1-A", "notes", "x-y-z"])
def test_a_folder_that_no_slot_of_the_plan_has_is_left_alone(tmp_path: Path, name: str) -> None:
    found = campaign(tmp_path / "c")
    (tmp_path / "c" / "slots" / "cell" / name).mkdir(parents=True)
    assert () == recover(found)
    assert (tmp_path / "c" / "slots" / "cell" / name).is_dir()


def test_files_that_never_got_their_name_go(tmp_path: Path) -> None:
    found = campaign(tmp_path / "c")
    slot = tmp_path / "c" / "slots" / "cell" / "01-1-A"
    half = [folder / ".fuseproof-123-0a0b.tmp" for folder in (tmp_path / "c", slot)]
    for path in half:
        path.write_text('{"schema"')
    (slot / "arm.tmp").write_text("an arm's own")
    recover(found)
    assert [False, False] == [path.exists() for path in half]
    assert (slot / "arm.tmp").exists()


def test_a_folder_with_nothing_but_an_unnamed_file_is_free_again(tmp_path: Path) -> None:
    half = tmp_path / "c" / ".fuseproof-123-0a0b.tmp"
    half.parent.mkdir()
    half.write_text('{"schema"')
    campaign(tmp_path / "c")
    assert not half.exists()
