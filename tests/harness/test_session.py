"""Around the loop: what a resumed campaign is told about the software it runs on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import UsageError
from fuseproof.harness.campaign.floors import kept_floor, read_floor
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.session import CampaignSession, changed_software
from tests.harness.fake_commands import fake_plan
from tests.harness.test_floor import floor_of
from tests.harness.test_runner import Notes, ScriptedExecutor

BEFORE: dict[str, Any] = {"fuseproof": {"commit": "aaa", "diff_sha256": None}, "libraries": {"torch": "2.13.0"}}


@pytest.mark.parametrize(
    ("now", "changes"),
    [
        pytest.param(BEFORE, [], id="nothing"),
        pytest.param({**BEFORE, "load_average": [9.0]}, [], id="load"),
        pytest.param({**BEFORE, "libraries": {"torch": "2.14.0"}}, ["torch went from 2.13.0 to 2.14.0"], id="library"),
        pytest.param(
            {**BEFORE, "fuseproof": {"commit": "bbb", "diff_sha256": None}},
            ["fuseproof's commit went from aaa to bbb"],
            id="commit",
        ),
        pytest.param({**BEFORE, "libraries": {}}, ["torch went from 2.13.0 to None"], id="library-gone"),
    ],
)
def test_changed_software(now: dict[str, Any], changes: list[str]) -> None:
    assert changes == changed_software(BEFORE, now)


@pytest.fixture(autouse=True)
def own_lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def session(executor: ScriptedExecutor, notes: Notes, environment: dict[str, Any]) -> CampaignSession:
    return CampaignSession(command=["fuseproof"], environment=environment, executor=executor, observer=notes)


def test_a_resumed_campaign_remarks_on_other_software_and_keeps_both(tmp_path: Path) -> None:
    plan, notes = fake_plan({}, {"worker_ms": 900}), Notes()
    session(ScriptedExecutor({"cell/01-2-B": "INTERRUPTED"}), notes, BEFORE).start(plan, tmp_path / "c")
    later = {**BEFORE, "libraries": {"torch": "2.14.0"}}
    outcome = session(ScriptedExecutor(), notes, later).resume(tmp_path / "c", None)
    assert "complete" == outcome.status
    assert any("torch went from 2.13.0 to 2.14.0" in remark for remark in notes.remarks)
    versions = [item.environment["libraries"]["torch"] for item in Campaign.open(tmp_path / "c").sessions]
    assert ["2.13.0", "2.14.0"] == versions


def test_nothing_is_written_when_a_check_fails(tmp_path: Path) -> None:
    plan = fake_plan({}, {})
    with pytest.raises(UsageError, match="same command"):
        session(ScriptedExecutor(), Notes(), BEFORE).start(plan, tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_are_counted_inside_and_as_before_outside(name: str) -> None:
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), number)
        assert (1, True) == (interrupts.count, interrupts.requested)
    assert before == signal.getsignal(number)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
        assert 0 == interrupts.count
    finally:
        signal.signal(signal.SIGHUP, before)


def test_blocks_are_added_to_a_complete_campaign_in_whole_pairs(tmp_path: Path) -> None:
    """The plan stays as it was, and the addition is noted, so that a report judges the added blocks more strictly."""
    plan, folder = fake_plan({}, {"worker_ms": 900}), tmp_path / "c"
    more = session(ScriptedExecutor(), Notes(), BEFORE)
    more.add_blocks = 2
    session(ScriptedExecutor({"cell/01-2-B": "INTERRUPTED"}), Notes(), BEFORE).start(plan, folder)
    with pytest.raises(UsageError, match="Block 1 of cell is not complete"):
        more.resume(folder, None)
    session(ScriptedExecutor(), Notes(), BEFORE).resume(folder, None)
    planned = Campaign.open(folder)
    before = [found.block for found in planned.complete_blocks("cell")]
    assert "complete" == more.resume(folder, None).status
    campaign = Campaign.open(folder)
    assert [*before, *(before[-1] + step for step in (1, 2))] == [b.block for b in campaign.complete_blocks("cell")]
    assert ((2,), planned.plan) == (campaign.added_blocks, campaign.plan)
    more.add_blocks = 3
    with pytest.raises(UsageError, match="--add-blocks is 3; it must be even, whole mirrored pairs"):
        more.resume(folder, None)


def test_a_floor_is_kept_before_the_first_slot(tmp_path: Path) -> None:
    floor = read_floor(floor_of(tmp_path / "aa"))
    one = session(ScriptedExecutor({"cell/01-1-A": "INTERRUPTED"}), Notes(), BEFORE)
    one.floor = floor
    one.start(fake_plan({}, {"worker_ms": 900}), tmp_path / "c")
    kept = kept_floor(tmp_path / "c")
    assert kept is not None and floor.sha256 == kept.sha256
