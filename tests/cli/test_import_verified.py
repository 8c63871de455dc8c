"""Published perf dumps, imported, reported and verified; then one digit of one slot is changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fuseproof.cli.main import main
from tests.harness.old_evidence import KLEIN


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("klein") / "campaign"
    assert 0 == main(["import", str(KLEIN), "--labels", "{block}-{arm}", "--output-dir", str(folder)])
    return folder


def test_import_report_and_verify_are_green(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["report", str(imported), "--check"])
    assert 0 == main(["verify", str(imported)])
    assert "VERIFIED" in capsys.readouterr().out
    text = (imported / "report.md").read_text(encoding="utf-8")
    for figure in ("2.57 % [2.39, 2.74]", "klein-r1", "klein-r2", "FASTER"):
        assert figure in text


@pytest.mark.parametrize(
    ("file", "number", "old", "new"),
    [
        pytest.param("01-2-B/perf.json", "total_duration_ms", "6026.5360759", "6016.5360759", id="total-of-the-dump"),
        pytest.param("02-4-A/result.json", "times.worker_s", "6.190122", "6.190222", id="worker-of-the-record"),
        pytest.param("01-1-A/perf.json", "times.denoise_s", "6054.502107", "6055.502107", id="stage-of-the-dump"),
    ],
)
def test_one_changed_digit_is_named(
    imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, number: str, old: str, new: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(imported, folder)
    changed = folder / "slots" / "klein" / file
    before = changed.read_text(encoding="utf-8")
    after = before.replace(old, new, 1)
    assert 1 == sum(one != other for one, other in zip(before, after, strict=True))
    changed.write_text(after, encoding="utf-8")
    capsys.readouterr()
    assert 1 == main(["verify", str(folder)])
    out = capsys.readouterr().out
    assert f"slots/klein/{file}" in out
    assert number in out, out
