"""``fuseproof report``: what it prints, what it writes, how it fails."""

from __future__ import annotations

import errno
import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuseproof.cli.main import main
from tests.cli.without_torch import without_torch
from tests.harness.campaign_builder import CampaignBuilder, Run

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
SLOWER = ((9.5, 10.0, 10.02, 9.51), (10.01, 9.52, 9.5, 10.03))
WITHOUT_TORCH = without_torch('main(["report", sys.argv[1]])')
FILES = ("report.md", "report.html", "report.json", "SHA256SUMS")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return CampaignBuilder(tmp_path / "campaign").blocks(FASTER).write()


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert "" == captured.out
    assert "Traceback" not in captured.err
    return captured.err


def test_prints_the_result_and_writes_the_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["report", str(folder)])
    out = capsys.readouterr().out
    assert out.startswith("FASTER: panda: Worker E2E −5.07 % latency (1.053× faster)")
    assert out.endswith(f"report: {folder / 'report.md'}\n")
    assert "\x1b" not in out
    assert all((folder / name).is_file() for name in FILES)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        pytest.param(["--format", "markdown"], "report.md", id="markdown"),
        pytest.param(["--format", "json"], "report.json", id="json"),
        pytest.param(["--json"], "report.json", id="json flag"),
    ],
)
def test_prints_what_it_writes(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], name: str
) -> None:
    assert 0 == main(["report", str(folder), *arguments])
    out = capsys.readouterr().out
    assert (folder / name).read_text(encoding="utf-8") == out
    if name == "report.json":
        assert "FASTER" == json.loads(out)["cells"][0]["word"]


def test_check_writes_nothing_and_finds_differences(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == main(["report", str(folder), "--check"])
    said = error_of(capsys)
    assert all(
        name in said for name in ("SHA256SUMS", "report.json", "report.md", "figures/", "changed, missing or new")
    )
    assert not (folder / "report.md").exists()
    assert 0 == main(["report", str(folder)])
    capsys.readouterr()
    assert 0 == main(["report", str(folder), "--check"])
    (line,) = capsys.readouterr().out.splitlines()
    assert "is up to date" in line and line.endswith("(1 FASTER in 1 cell)")
    result = folder / "slots/panda/01-1-A/result.json"
    result.write_text(
        result.read_text(encoding="utf-8").replace('"worker_s": 10.0', '"worker_s": 11.0'), encoding="utf-8"
    )
    assert 1 == main(["report", str(folder), "--check"])
    assert "slots/panda/01-1-A/result.json" in error_of(capsys)


def test_some_blocks_are_printed_and_never_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["report", str(folder), "--block", "2"])
    assert "block 2 of 2 run; others omitted by request" in capsys.readouterr().out
    assert not (folder / "report.md").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(["--block", "9"], "There is no block 9; this campaign has blocks 1 to 2.", id="no such block"),
        pytest.param(["--block", "1", "--check"], "--check speaks of the whole report", id="check of a part"),
        pytest.param(["--format", "pdf"], "'pdf' is not one of", id="format"),
    ],
)
def test_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    assert 2 == main(["report", str(folder), *arguments])
    assert sentence in error_of(capsys)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        pytest.param("campaign.json", None, "is no campaign folder: it has no campaign.json", id="no campaign"),
        pytest.param("campaign.json", "{", "campaign.json", id="truncated index"),
        pytest.param("campaign.json", "{}", "schema is None", id="no schema"),
        pytest.param("slots/panda/01-2-B/result.json", "[]", "01-2-B/result.json", id="a list for a slot"),
        pytest.param(
            "slots/panda/01-2-B/result.json", '{"schema": "fuseproof.slot/1"}', "result.json", id="empty slot"
        ),
        pytest.param("slots/panda/01-2-B/perf.json", '{"total_duration_ms": -1}', "perf.json", id="negative time"),
    ],
)
def test_damaged_folder_names_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | None, sentence: str
) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content, encoding="utf-8")
    assert 1 == main(["report", str(folder)])
    assert sentence in error_of(capsys)
    assert not (folder / "report.md").exists()


def test_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == main(["report", str(tmp_path / "nothing")])
    assert "is no campaign folder" in error_of(capsys)


@pytest.mark.parametrize(
    ("runs", "exit_code"),
    [
        pytest.param({}, 0, id="slower is only a failure of the commands that measure"),
        pytest.param({"raw_shift": True}, 4, id="outputs break their contract"),
        pytest.param({"config": True}, 6, id="unequal work"),
    ],
)
def test_exit_codes(tmp_path: Path, runs: dict[str, bool], exit_code: int) -> None:
    builder = CampaignBuilder(tmp_path / "campaign")
    for index, (way, row) in enumerate(zip(("ABBA", "BAAB"), SLOWER, strict=True)):
        changed = {"raw_shift": 1} if "raw_shift" in runs else {"config": {"seed": 1}} if "config" in runs else {}
        block = [Run(worker_s=s, **(changed if arm == "B" else {})) for arm, s in zip(way, row, strict=True)]
        builder.block(block, block=index + 1)
    assert exit_code == main(["report", str(builder.write())])


def test_failed_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = CampaignBuilder(tmp_path / "campaign", status="failed")
    builder.block([Run(), Run(state="invalid", reason_code="EXIT", reason="it ended with exit status 1")])
    assert 1 == main(["report", str(builder.write())])
    assert capsys.readouterr().out.startswith("INVALID: panda: EXIT: candidate EXIT in panda/01-2-B")


def test_interrupted_campaign_renders_what_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = CampaignBuilder(tmp_path / "campaign", blocks=3, status="interrupted").blocks(FASTER)
    assert 0 == main(["report", str(builder.write())])
    assert "the campaign is interrupted: 2 of 3 planned blocks are complete" in capsys.readouterr().out


@pytest.fixture
def read_only(folder: Path) -> Iterator[Path]:
    assert 0 == main(["report", str(folder)])
    mode = folder.stat().st_mode
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    yield folder
    folder.chmod(mode)


def test_complete_folder_may_be_read_only(read_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert 0 == main(["report", str(read_only)])
    assert "FASTER" in capsys.readouterr().out


def test_works_without_torch_and_its_friends(folder: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(folder)], capture_output=True, text=True, check=False
    )
    assert 0 == result.returncode, result.stderr
    assert result.stdout.startswith("FASTER")


def test_help_loads_no_numerics() -> None:
    program = (
        "import sys\nfrom fuseproof.cli.main import main\nmain(['report', '--help'])\n"
        "sys.exit(bool({'numpy', 'scipy', 'pydantic', 'jinja2', 'torch'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert 0 == result.returncode, result.stderr
    assert "Render the campaign in DIR again" in result.stdout


def test_changed_measurement_is_not_signed_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["report", str(folder)])
    capsys.readouterr()
    (folder / "slots/panda/01-2-B/outputs/image-0.png").write_bytes(b"x")
    assert 1 == main(["report", str(folder)])
    assert "slots/panda/01-2-B/outputs/image-0.png is not the file that it lists" in error_of(capsys)
    assert 1 == main(["report", str(folder), "--check"])
    assert "Restore the files below slots/" in error_of(capsys)


def test_signed_campaign_that_lost_a_slot_is_shown_and_not_signed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == main(["report", str(folder)])
    sums = (folder / "SHA256SUMS").read_bytes()
    shutil.rmtree(folder / "slots/panda/01-2-B")
    capsys.readouterr()
    assert 1 == main(["report", str(folder)])
    captured = capsys.readouterr()
    assert "candidate MISSING in panda/01-2-B: its folder is missing" in captured.out
    assert "is missing" in captured.err and "Traceback" not in captured.err
    assert sums == (folder / "SHA256SUMS").read_bytes()


@pytest.mark.parametrize("has_old_file", [False, True])
def test_read_only_mount(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, has_old_file: bool
) -> None:
    assert 0 == main(["report", str(folder)])
    capsys.readouterr()
    if has_old_file:
        (folder / "raw-runs.md").write_text("old", encoding="utf-8")

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert int(has_old_file) == main(["report", str(folder)])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert has_old_file == ("cannot be removed: Read-only file system" in captured.err)
    assert has_old_file != ("FASTER" in captured.out)
