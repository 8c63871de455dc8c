"""``abba --gpus`` and ``--executor ray`` from the command line, with cards that only nvidia-smi's stand-in knows."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from fuseproof.cli.main import main
from fuseproof.harness.campaign import gpu_rest
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.gpu_rest import CardsLook
from fuseproof.harness.campaign.gpu_telemetry import GpuSampler
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.locking import campaign_locks
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.slots import ProcessExecutor
from fuseproof.harness.machine.gpus import GpuSurvey
from fuseproof.schedules.order import PlannedSlot
from tests.harness.fake_commands import fake_command
from tests.harness.test_gpu_choice import FIRST, SECOND

ARMS = ("--baseline-command", fake_command(worker_ms=1000), "--candidate-command", fake_command(worker_ms=900))
BLOCKS = ("--blocks=2", "--output=c", "--allow-busy")


@pytest.fixture(autouse=True)
def two_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two idle cards that no driver is asked about."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path.parent))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("fuseproof.harness.machine.gpus.survey_gpus", lambda: GpuSurvey((FIRST, SECOND)))
    monkeypatch.setattr(gpu_rest.GpuWatch, "look", lambda self, uuids: CardsLook(dict.fromkeys(uuids, 0.0)))
    monkeypatch.setattr(GpuSampler, "start", lambda self: None)


def abba(*arguments: str) -> int:
    return main(["abba", *arguments])


def test_blocks_run_side_by_side_and_the_report_says_so(tmp_path: Path) -> None:
    assert 0 == abba(*ARMS, *BLOCKS, "--gpus=0,1")
    campaign = Campaign.open(tmp_path / "c")
    cards = {
        block: {slot.device and slot.device.card for slot in campaign.slots() if slot.block == block}
        for block in (1, 2)
    }
    assert {1: 1, 2: 1} == {block: len(found) for block, found in cards.items()}
    assert {"GPU-aaaa1111", "GPU-bbbb2222"} == cards[1] | cards[2]
    report = (tmp_path / "c" / "report.md").read_text(encoding="utf-8")
    assert "Scope: up to 2 blocks ran side by side on 2 GPUs; they shared the host's processors" in report
    assert "DIFFERENT_CARDS" in report and "the blocks ran on 2 cards" in report
    assert "CUDA_VISIBLE_DEVICES" not in report, "a card's UUID belongs to no command that somebody repeats"
    assert ["GPU-aaaa1111", "GPU-bbbb2222"] == campaign.environment["visible_gpu_uuids"]
    assert 0 == main(["verify", "c"])


def test_one_gpu_of_two_is_one_lane_and_the_other_stays_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with campaign_locks(tmp_path / "elsewhere", [str(FIRST.uuid)]):
        assert 6 == abba(*ARMS, *BLOCKS, "--gpus=0,1")
        assert "using the device GPU-aaaa1111" in capsys.readouterr().err
        assert not (tmp_path / "c").exists()
        assert 0 == abba(*ARMS, "--blocks=1", "--output=c", "--allow-busy", "--gpus=1")
    report = (tmp_path / "c" / "report.md").read_text(encoding="utf-8")
    assert "Scope: one block at a time ran, on 1 GPU." in report
    assert "DIFFERENT_CARDS" not in report


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param(["--gpus=5"], "there are 0 (GPU-aaaa1111), 1 (GPU-bbbb2222)", id="no-such-gpu"),
        pytest.param(["--gpus=0,0"], "names GPU 0 twice", id="twice"),
        pytest.param(["--gpus=5", "--dry-run"], "names '5'", id="dry-run-checks-too"),
        pytest.param(["--gpus=0", "--executor=ray"], "has no effect with --executor ray", id="ray-places-them"),
        pytest.param(["--gpus-per-block=0"], "has no effect without --executor ray", id="per-block-alone"),
        pytest.param(
            ["--gpus=0", "--plan-for=1%", "--scatter=1%"], "--gpus has no effect with --plan-for", id="planning"
        ),
        pytest.param(["--executor=slurm"], "'slurm' is not one of local, ray", id="unknown-executor"),
        pytest.param(["--executor=ray"], "needs Ray 2.60.0 or later", id="no-ray"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(
    flags: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert 2 == abba(*ARMS, *BLOCKS, *flags)
    assert words in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        pytest.param(["--gpus=0,1"], 0, "there is no GPU here (no driver), so --gpus 0,1 is not checked", id="gpus"),
        pytest.param(["--executor=ray"], 0, "needs Ray 2.60.0 or later", id="ray"),
        pytest.param(["--gpus=0,0"], 2, "names GPU 0 twice", id="twice"),
        pytest.param(["--gpus=all"], 2, "'all', which is neither an index nor a UUID", id="no-card"),
    ],
)
def test_a_campaign_of_many_gpus_is_planned_where_there_are_none(
    flags: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("fuseproof.harness.machine.gpus.survey_gpus", lambda: GpuSurvey((), reason="no driver"))
    assert code == abba(*ARMS, "--output=c", *flags, "--dry-run")
    captured = capsys.readouterr()
    assert said in " ".join((captured.out + captured.err).split())
    assert (code == 0) == ("cannot run here" in " ".join(captured.out.split()))
    assert not (tmp_path / "c").exists()


def test_an_interrupted_campaign_is_resumed_on_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    execute = ProcessExecutor.execute

    def interrupted(self: ProcessExecutor, campaign: Campaign, slot: PlannedSlot, interrupts: Interrupts) -> SlotRecord:
        if slot.id == "command/02-3-A":
            os.kill(os.getpid(), signal.SIGINT)
        return execute(self, campaign, slot, interrupts)

    with monkeypatch.context() as patch:
        patch.setattr(ProcessExecutor, "execute", interrupted)
        assert 130 == abba(*ARMS, *BLOCKS, "--gpus", "0,1")
    assert "abba --resume c --gpus 0,1 goes on with the blocks that were interrupted" in capsys.readouterr().err
    assert "interrupted" == json.loads((tmp_path / "c" / "campaign.json").read_text(encoding="utf-8"))["status"]
    assert 2 == abba("--resume=c", "--allow-busy")
    assert "ran side by side" in capsys.readouterr().err
    assert 0 == abba("--resume=c", "--allow-busy", "--gpus=0,1")
    assert [1, 2] == [found.block for found in Campaign.open(tmp_path / "c").complete_blocks("command")]
