"""Around the loop: what a resumed campaign is told about the software it runs on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import UsageError
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.session import CampaignSession, changed_software
from tests.harness.fake_commands import fake_plan
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
