"""The live table and its silence elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fuseproof.cli import abba_view
from fuseproof.cli.abba_view import LiveTable, PlainLines, campaign_view
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.records import Contention, SlotMemory, SlotRecord, SlotTimes
from fuseproof.schedules.order import timed_slots, warmup_slots
from tests.harness.fake_commands import fake_plan


def drawn(table: LiveTable) -> str:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    plan = fake_plan({}, {"worker_ms": 900}, title="old [b]against[/b] new", blocks=2)
    return Campaign.create(tmp_path / "c", plan, command=[], environment={}, created="2026-01-01T00:00:00+00:00")


@pytest.fixture
def table(campaign: Campaign) -> LiveTable:
    view = LiveTable(Console(file=io.StringIO(), width=120))
    view.campaign_started(campaign)
    return view


def test_a_table_shows_numbers_reasons_and_what_runs(table: LiveTable) -> None:
    slots = timed_slots("cell", 1, 1, "ABBA")
    warmup = SlotRecord.planned(warmup_slots("cell", 1, 1, "ABBA", 1)[0], "done")
    good = SlotRecord.planned(slots[0], "done", times=SlotTimes(1.2345, 1.1), memory=SlotMemory(1300.4), wall_s=9.0)
    busy = good.with_facts(id="cell/01-2-B", contention=Contention(0.5, True, 0.1))
    lost = SlotRecord.planned(slots[2], "invalid", reason_code="OOM", reason="[red]out of memory")
    for record in (warmup, good, busy, lost):
        table.slot_finished(record)
    table.slot_started(slots[3])
    text = drawn(table)
    table.close()
    assert "old [b]against[/b] new: 0 of 2 blocks, 4 slots, at most 1 min left" in text
    for words in (
        "discarded",
        "1.234",
        "1.100",
        "1.27",
        "disturbed by other processes",
        "[red]out of memory",
        "so far",
    ):
        assert words in text, words


def test_slots_of_several_lanes_are_shown_as_running(table: LiveTable) -> None:
    first, second = timed_slots("cell", 1, 1, "ABBA")[0], timed_slots("cell", 2, 1, "BAAB")[0]
    table.slot_started(first)
    table.slot_started(second)
    assert 2 == drawn(table).count("so far")
    table.slot_finished(SlotRecord.planned(first, "done"))
    text = drawn(table)
    table.close()
    assert 1 == text.count("so far") and "cell/02-1-B" in text


def test_a_long_campaign_shows_its_last_rows(table: LiveTable) -> None:
    record = SlotRecord.planned(timed_slots("cell", 1, 1, "ABBA")[0], "done")
    for number in range(100):
        table.slot_finished(record.with_facts(id=f"cell/{number:02d}-1-A"))
    text = drawn(table)
    table.close()
    assert "cell/99-1-A" in text and "cell/85-1-A" not in text


def test_without_a_terminal_there_is_a_line_a_slot(capfd: pytest.CaptureFixture[str], campaign: Campaign) -> None:
    with campaign_view() as observer:
        assert isinstance(observer, PlainLines)
        observer.campaign_started(campaign)
        slot = timed_slots("cell", 1, 1, "ABBA")[0]
        observer.slot_started(slot)
        observer.slot_finished(SlotRecord.planned(slot, "done", wall_s=14.21, times=SlotTimes(worker_s=4.0123)))
        observer.slot_finished(SlotRecord.planned(slot, "invalid"))
        observer.remark("slot x was disturbed")
    lines = [
        "fuseproof: slot 1 of 8, cell/01-1-A: done after 14.2 s, worker 4.012 s",
        "fuseproof: slot 2 of 8, cell/01-1-A: invalid",
        "fuseproof: slot x was disturbed",
    ]
    said = capfd.readouterr()
    assert ("", lines) == (said.out, said.err.splitlines())


def test_the_table_is_drawn_at_most_once_a_second(table: LiveTable) -> None:
    assert abba_view.REFRESHES_PER_SECOND <= 1
    assert table._live.refresh_per_second <= 1
    table.close()
