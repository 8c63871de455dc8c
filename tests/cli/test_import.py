"""``fuseproof import``: the command line, its exit codes, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuseproof.cli.main import main
from tests.harness.old_evidence import KLEIN, LONGLIVE2, write_block


def test_a_folder_of_dumps_becomes_a_campaign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "campaign"
    assert 0 == main(["import", str(KLEIN), "--labels", "{block}-{arm}", "--output-dir", str(target)])
    out = capsys.readouterr().out
    assert out.startswith("FASTER: klein: Worker E2E −2.57 % latency")
    assert "note: imported: 8 perf dumps measured by sglang" in out
    assert out.endswith(f"report: {target / 'report.md'}\n")
    assert 0 == main(["report", str(target), "--check"])
    assert 0 == main(["report", str(target)])


def test_json_names_files_and_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["import", str(LONGLIVE2), "--output-dir", str(tmp_path / "c"), "--json"])
    values = json.loads(capsys.readouterr().out)
    assert ("fuseproof.import/1", {"i2v": "FASTER"}) == (values["schema"], values["words"])
    assert {"absent": 4, "done": 8} == values["slots"]
    assert "{cell}-{block}-{arm}" == values["origin"]["labels"]


def test_single_files_and_an_empty_folder_will_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "empty"
    target.mkdir()
    files = [str(path) for path in write_block(tmp_path / "old", 1)]
    assert 0 == main(["import", *files, "--output-dir", str(target), "--created", "2026-01-02T03:04:05"])
    assert "INCONCLUSIVE: old:" in capsys.readouterr().out
    assert "2026-01-02T03:04:05.000+00:00" == json.loads((target / "campaign.json").read_text())["created"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param([], 2, "There is nothing to import", id="no source"),
        pytest.param(["nowhere"], 1, "nowhere cannot be read", id="missing source"),
        pytest.param(["used"], 2, "There is no .json file", id="no dump"),
        pytest.param(["old", "old"], 2, "is given twice", id="twice"),
        pytest.param(["old", "--labels", "{x}"], 2, "has no field {x}", id="unknown field"),
        pytest.param(["old", "--labels", "z{arm}"], 2, "No file name fits --labels", id="nothing fits"),
        pytest.param(["old", "--labels", " "], 2, "--labels is empty", id="empty labels"),
        pytest.param(["old", "--contract", "near"], 2, "near", id="contract"),
        pytest.param(["old", "--created", "yesterday"], 2, "no ISO 8601 time", id="created"),
        pytest.param(["old", "--min-effect", "200%"], 2, "not an effect", id="effect"),
        pytest.param(["old", "--manifest", "none.toml"], 2, "none.toml cannot be read", id="missing manifest"),
        pytest.param(["old", "--manifest", "bad.toml"], 2, "bad.toml is not valid TOML", id="manifest is no TOML"),
        pytest.param(["old", "--manifest", "old"], 2, "is no regular file", id="manifest is a folder"),
        pytest.param(["old", "--manifest", "slots.toml"], 2, "names every slot itself", id="slots and sources"),
        pytest.param(["--manifest", "slots.toml"], 1, "gone.json cannot be read", id="slot without a file"),
        pytest.param(["old", "--output-dir", "used"], 2, "already holds files", id="used folder"),
        pytest.param(["old", "--output-dir", "old/campaign"], 2, "lies inside", id="inside a source"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_block(tmp_path / "old", 1)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "bad.toml").write_text("a = ", encoding="utf-8")
    slot = '[[slots]]\ncell = "a"\nblock = 1\narm = "a1"\nperf_dump = "gone.json"\n'
    (tmp_path / "slots.toml").write_text(slot, encoding="utf-8")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    target = [] if "--output-dir" in arguments else ["--output-dir", "campaign"]
    assert code == main(["import", *arguments, *target])
    captured = capsys.readouterr()
    assert "" == captured.out
    assert words in captured.err
    assert "next: " in captured.err
    assert before == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))


def test_a_failing_report_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fuseproof.harness.report.write_report", fail)
    assert 130 == main(["import", str(KLEIN), "--output-dir", str(tmp_path / "campaign")])
    assert [] == list(tmp_path.iterdir())
