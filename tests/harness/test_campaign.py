"""The campaign folder: what it refuses, what it keeps, and that it never holds half a file."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.schedules.order import timed_slots
from tests.harness.fake_commands import fake_plan

CREATED = "2026-01-01T00:00:00.000+00:00"


def create(directory: Path, **keys: Any) -> Campaign:
    plan = fake_plan({}, {"worker_ms": 900}, **keys)
    return Campaign.create(directory, plan, command=["fuseproof", "abba"], environment={"x": 1}, created=CREATED)


def save_block(campaign: Campaign, block: int, attempt: int, states: str = "dddd") -> None:
    """Save one attempt at a block; ``d`` is done, ``i`` invalid, ``r`` running."""
    words = {"d": "done", "i": "invalid", "r": "running"}
    for slot, letter in zip(timed_slots("cell", block, attempt, "ABBA"), states, strict=False):
        campaign.save_slot(SlotRecord.planned(slot, words[letter]))  # type: ignore[arg-type]


def test_a_campaign_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c")
    save_block(campaign, 1, 1)
    campaign.save_status("complete")
    found = Campaign.open(tmp_path / "c")
    assert campaign.to_json() == found.to_json()
    assert campaign.slots() == found.slots()
    assert campaign.plan == found.plan


def test_the_index_has_the_agreed_keys(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c")
    save_block(campaign, 1, 1, "d")
    values = json.loads((tmp_path / "c" / "campaign.json").read_text())
    expected = {
        "id": "cell/01-1-A",
        "directory": "slots/cell/01-1-A",
        "cell": "cell",
        "block": 1,
        "attempt": 1,
        "position": 1,
        "arm": "A",
        "label": "A1",
        "orientation": "ABBA",
        "kind": "timed",
        "state": "done",
        "reason_code": None,
    }
    assert [expected] == values["slots"]
    assert ("fuseproof.campaign/1", "fake", CREATED, "running") == tuple(
        values[key] for key in ("schema", "name", "created", "status")
    )


def test_an_empty_folder_is_taken_and_a_used_one_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty")
    with pytest.raises(UsageError, match="already holds files"):
        create(tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        create(tmp_path / "file")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FuseproofError, match="Not a directory") as caught:
        create(tmp_path / "file" / "below")
    assert str(tmp_path / "file" / "below") in caught.value.message


@pytest.mark.parametrize(
    ("attempts", "complete"),
    [
        pytest.param([(1, 1, "dddd")], [(1, 1)], id="one-block"),
        pytest.param([(1, 1, "ddi")], [], id="lost-block"),
        pytest.param([(1, 1, "ddd")], [], id="three-slots-are-no-block"),
        pytest.param([(1, 1, "ddi"), (1, 2, "dddd")], [(1, 2)], id="second-attempt-counts"),
        pytest.param([(1, 1, "dd"), (1, 2, "dd")], [], id="attempts-never-mix"),
        pytest.param([(2, 1, "dddd"), (1, 1, "dddd")], [(1, 1), (2, 1)], id="block-order"),
    ],
)
def test_which_blocks_count(tmp_path: Path, attempts: list[tuple[int, int, str]], complete: list[Any]) -> None:
    campaign = create(tmp_path / "c", blocks=2)
    for block, attempt, states in attempts:
        save_block(campaign, block, attempt, states)
    assert complete == [(block.block, block.attempt) for block in campaign.complete_blocks("cell")]


def test_superseded_slots_keep_their_place(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c")
    save_block(campaign, 1, 1, "dir")
    campaign.supersede_block("cell", 1, "started again")
    slots = Campaign.open(tmp_path / "c").slots()
    assert ["superseded", "invalid", "interrupted"] == [slot.state for slot in slots]
    assert ["SUPERSEDED", None, "INTERRUPTED"] == [slot.reason_code for slot in slots]


def test_a_result_missing_from_the_index_is_found(tmp_path: Path) -> None:
    """A crash between the two writes loses the index entry, never the slot."""
    campaign = create(tmp_path / "c")
    index = (tmp_path / "c" / "campaign.json").read_bytes()
    save_block(campaign, 1, 1, "d")
    (tmp_path / "c" / "campaign.json").write_bytes(index)
    assert 1 == Campaign.open(tmp_path / "c").attempts("cell", 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(lambda text: text[: len(text) // 2], "not valid JSON", id="truncated"),
        pytest.param(lambda text: text.replace("campaign/1", "campaign/9"), "campaign/9", id="later-schema"),
        pytest.param(lambda text: text.replace('"status": "running"', '"status": "odd"'), "odd", id="odd-status"),
        pytest.param(lambda text: text.replace('"blocks"', '"blcks"'), "blcks", id="unknown-plan-key"),
        pytest.param(lambda text: text.replace('"created"', '"creatd"'), "created", id="missing-key"),
    ],
)
def test_damaged_campaigns_are_named(tmp_path: Path, change: Any, named: str) -> None:
    create(tmp_path / "c")
    source = tmp_path / "c" / "campaign.json"
    source.write_text(change(source.read_text()))
    with pytest.raises(FuseproofError, match=named) as caught:
        Campaign.open(tmp_path / "c")
    assert "campaign.json" in caught.value.message


def test_a_folder_without_campaign_is_named(tmp_path: Path) -> None:
    with pytest.raises(FuseproofError, match="no campaign folder"):
        Campaign.open(tmp_path)


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c")
    save_block(campaign, 1, 1, "d")
    result = tmp_path / "c" / "slots" / "cell" / "01-1-A" / "result.json"
    result.write_text(result.read_text().replace('"block": 1', '"block": "one"'))
    with pytest.raises(FuseproofError, match="key block"):
        Campaign.open(tmp_path / "c")


def test_unknown_keys_of_later_versions_are_ignored(tmp_path: Path) -> None:
    campaign = create(tmp_path / "c")
    save_block(campaign, 1, 1, "d")
    record = campaign.slots()[0]
    assert record == SlotRecord.from_json(record.to_json() | {"of_a_later_version": {}})


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = create(tmp_path / "c")
    save_block(campaign, 1, 1, "d")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FuseproofError, match="No space left on device"):
        campaign.save_status("complete")
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
