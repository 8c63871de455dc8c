"""``fuseproof verify`` and ``fuseproof pack``: what they print, and how they end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fuseproof.cli.main import main
from fuseproof.harness.report import write_report
from tests.cli.without_torch import without_torch
from tests.harness.campaign_builder import CampaignBuilder

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
WITHOUT_TORCH = without_torch('main(["verify", sys.argv[1]]) or main(["pack", sys.argv[1], "--output", sys.argv[2]])')


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = CampaignBuilder(tmp_path / "campaign").blocks(FASTER, denoise_s=5.0).write()
    write_report(folder)
    return folder


def edit(folder: Path) -> None:
    result = folder / "slots/panda/01-2-B/result.json"
    result.write_text(result.read_text(encoding="utf-8").replace('"worker_s": 9.5', '"worker_s": 9.4'), "utf-8")


def test_green(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["verify", str(folder)])
    lines = capsys.readouterr().out.splitlines()
    assert ["signature", "slots", "hashes", "numbers", "metrics", "report"] == [
        line.split()[0] for line in lines if " ok " in line
    ]
    assert "audited: 45 files, 8 records, 32 hashes, " in lines[-2]
    hashes = "16 hashes recomputed; 8 of latents and 8 of raw arrays stand as recorded, because those were not kept"
    assert f"VERIFIED: {folder} agrees with everything that can be recomputed from it: {hashes}." == lines[-1]


def test_red(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(folder)
    assert 1 == main(["verify", str(folder)])
    captured = capsys.readouterr()
    verdict = next(line for line in captured.out.splitlines() if line.startswith("NOT VERIFIED: "))
    assert "slots/panda/01-2-B/result.json: times.worker_s is 9.4, but 9.5 by slots/panda/01-2-B/perf.json" in verdict
    assert "" == captured.err
    assert captured.out.splitlines()[-1].startswith("  next: ")


def test_a_link_is_not_sent_to_the_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "figures").mkdir(exist_ok=True)
    (folder / "figures" / "panda-sheet.png").unlink(missing_ok=True)
    (folder / "figures" / "panda-sheet.png").symlink_to(folder / "report.md")
    assert 1 == main(["verify", str(folder)])
    advice = capsys.readouterr().out.splitlines()[-1]
    assert (True, False) == ("Put a file in the place of every link" in advice, "fuseproof report" in advice)
    assert 1 == main(["report", str(folder)])
    assert "figures/panda-sheet.png is a link" in capsys.readouterr().err


@pytest.mark.parametrize("is_edited", [False, True])
def test_json(folder: Path, capsys: pytest.CaptureFixture[str], is_edited: bool) -> None:
    if is_edited:
        edit(folder)
    assert int(is_edited) == main(["verify", str(folder), "--json"])
    values = json.loads(capsys.readouterr().out)
    assert ("fuseproof.verification/1", not is_edited) == (values["schema"], values["is_verified"])
    if is_edited:
        first = values["first"]
        assert ("times.worker_s", 9.4, 9.5) == (first["place"], first["stated"], first["expected"])


def test_many_findings_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in folder.glob("slots/*/*/outputs/*"):
        path.unlink()
    assert 1 == main(["verify", str(folder)])
    assert "  and 3 more; --json lists them" in capsys.readouterr().out


def test_several_folders_are_all_checked(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder, tmp_path / "other")
    assert 0 == main(["verify", "campaign", "other"])
    assert "2 of 2 campaigns verified" == capsys.readouterr().out.splitlines()[-1]
    edit(folder)
    (tmp_path / "empty").mkdir()
    assert 1 == main(["verify", "campaign", "empty", "other"])
    captured = capsys.readouterr()
    assert "NOT VERIFIED: " in captured.out and "VERIFIED: other agrees" in captured.out
    assert "empty is no campaign folder" in captured.err
    assert "1 of 3 campaigns verified" == captured.out.splitlines()[-1]
    assert 1 == main(["verify", "--json", "campaign", "empty", "other"])
    values = json.loads(capsys.readouterr().out)
    assert ("fuseproof.verifications/1", False) == (values["schema"], values["is_verified"])
    expected = [("campaign", False), ("empty", False), ("other", True)]
    assert expected == [(campaign["directory"], campaign["is_verified"]) for campaign in values["campaigns"]]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        pytest.param(["verify"], 2, "Missing argument 'DIR...'", id="no folder"),
        pytest.param(["verify", "nothing"], 1, "is no campaign folder", id="not there"),
        pytest.param(["pack", "nothing"], 1, "is no campaign folder", id="nothing to pack"),
        pytest.param(["pack", "campaign", "--asset-base-url", "x"], 2, "--asset-base-url is 'x'", id="no URL"),
        pytest.param(["pack", "campaign", "--output", "campaign/x.zip"], 2, "lies inside", id="inside"),
    ],
)
def test_mistakes(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, sentence: str
) -> None:
    assert code == main(arguments)
    captured = capsys.readouterr()
    assert sentence in captured.err and "Traceback" not in captured.err
    assert "" == captured.out


def test_pack(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["pack", "campaign"])
    captured = capsys.readouterr()
    assert captured.out.startswith("campaign.zip: 49 files, ")
    assert "of 65,536 characters" in captured.out
    assert "8 logs and all perf.json are packed in the arms' own words" in captured.err
    assert 2 == main(["pack", "campaign"])
    assert "campaign.zip exists, and is not replaced." in capsys.readouterr().err


def test_pack_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["pack", "campaign", "--without-logs", "--json"])
    values = json.loads(capsys.readouterr().out)
    assert ["panda-01-1-A-1.png", "panda-01-2-B-1.png"] == values["assets"]
    assert Path(values["archive"]).stat().st_size == values["archive_bytes"]
    assert 0 == values["log_bytes"]


def test_pack_of_an_edited_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(folder)
    assert 1 == main(["pack", "campaign"])
    assert "does not pass fuseproof verify: " in capsys.readouterr().err
    assert 0 == main(["pack", "campaign", "--unverified"])
    assert "warning: the folder does not verify" in capsys.readouterr().err


def test_works_without_torch_and_its_friends(folder: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(folder), str(tmp_path / "x.zip")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == result.returncode, result.stderr
    assert "VERIFIED" in result.stdout
