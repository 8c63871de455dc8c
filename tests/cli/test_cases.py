"""Cases from practice at the command line, where no other test has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fuseproof.cli.doctor import doctor
from fuseproof.cli.main import main
from tests.cli.desk import SMALL, Desk


def test_a_png_needs_no_ffmpeg(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Case 86: no program at all is found, and picture, dump and raw array are written."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    arguments = ("--prompt=a", *SMALL, "--perf-dump-path=p.json", "--output-file-name=x.png", "--keep-raw")
    assert 0 == desk.run(*arguments), desk.err
    assert {"outputs/x.png", "p.json", "raw/x.npy"} <= set(desk.files())
    assert 0 < desk.dump()["timers"]["save_ms"]


def test_saving_is_a_time_of_its_own_outside_the_worker(desk: Desk) -> None:
    """Case 86: the stages of a dump hold no saving; without a file there is no time of saving it."""
    assert 0 == desk.run("--prompt=a", *SMALL, "--perf-dump-path=p.json")
    dump = desk.dump()
    assert [] == [stage["name"] for stage in dump["steps"] if "sav" in stage["name"].lower()]
    assert dump["timers"]["save_ms"] == dump["requests"][0]["save_ms"] > 0
    assert 0 == desk.run("--prompt=a", *SMALL, "--perf-dump-path=p.json", "--no-save-output")
    assert 0 == desk.dump()["timers"]["save_ms"]


@pytest.mark.parametrize("output", ["file/c", f"{'x' * 300}/c"], ids=["below-a-file", "too-long"])
def test_a_campaign_folder_that_cannot_be_made_is_one_sentence(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 78, for every user: root may write into a read-only folder, and not below a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path.parent))  # locks of its own
    (tmp_path / "file").write_text("")
    command = ["--baseline-command=echo {perf_dump}", "--candidate-command=true {perf_dump}"]
    assert 0 != main(["abba", *command, f"--output={output}", "--allow-busy"])
    told = capsys.readouterr().err
    assert told.startswith("fuseproof: error: ") and output[:100] in told.replace("\n", "")
    assert "Traceback" not in told
    assert ["file"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize(("no_color", "expected"), [(None, True), ("1", False)], ids=["terminal", "NO_COLOR"])
def test_no_color_is_honoured_and_no_meaning_is_lost(
    monkeypatch: pytest.MonkeyPatch, no_color: str | None, expected: bool
) -> None:
    """Case 111: marks are words, and only coloured ones where colour is wanted."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    text = CliRunner().invoke(doctor, [], color=True, standalone_mode=False).stdout
    assert expected == ("\x1b" in text)
    assert "yes" in text and "generate" in text
