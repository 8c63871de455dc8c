"""What lies beside imported dumps: pictures, logs, and inputs that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.sglang_log import read_sglang_log
from fuseproof.harness.report import render_markdown
from fuseproof.harness.statistics.verdict import Word
from tests.harness.old_evidence import (
    imported,
    origin_of,
    sglang_dump,
    with_manifest,
    write_block,
    write_dump,
    write_log,
    write_picture,
)


def test_pictures_beside_the_dumps_are_compared(tmp_path: Path) -> None:
    for block in (1, 2):
        for path in write_block(tmp_path / "old", block):
            write_picture(path)
    analysis = imported(tmp_path, tmp_path / "old")
    (cell,) = analysis.cells
    assert "identical" == cell.outputs.status
    assert "outputs/r1-a1.png" == cell.runs.runs[0].record.outputs[0].path
    write_picture(tmp_path / "old" / "r2-b1.json", number=2)
    (cell,) = imported(tmp_path, tmp_path / "old", name="other").cells
    assert not cell.outputs.keeps_contract


def test_a_folder_of_outputs_and_a_dump_alone_in_its_folder(tmp_path: Path) -> None:
    (path, *_) = write_block(tmp_path / "old", 1)
    folder = path.with_suffix("")
    folder.mkdir()
    write_picture(folder / "frame-0.json")
    analysis = imported(tmp_path, tmp_path / "old", name="one")
    assert ["outputs/frame-0.png"] == [output.path for output in analysis.cells[0].runs.slots[0].outputs]

    for path in write_block(tmp_path / "raw", 1, name="r{block}-{arm}/model_t2v-r{block}-{arm}"):
        write_picture(path.parent / "anything.json")
        (path.parent / "native.log").write_text("hello\n", encoding="utf-8")
    analysis = imported(tmp_path, tmp_path / "raw", name="two")
    (cell,) = analysis.cells
    assert ["outputs/anything.png"] * 4 == [slot.outputs[0].path for slot in cell.runs.slots]
    assert ("hello",) == cell.runs.slots[0].log_tail
    assert "model_t2v" == cell.name


def test_client_seconds_come_from_sglangs_log_and_keep_their_tick(tmp_path: Path) -> None:
    for block in (1, 2):
        for path in write_block(tmp_path / "old", block):
            write_log(path)
    analysis = imported(tmp_path, tmp_path / "old")
    (cell,) = analysis.cells
    client = next(metric for metric in cell.metrics if metric.name == "client")
    assert client.verdict is not None
    assert client.verdict.comparison is not None
    assert 0.01 == client.verdict.comparison.tick_s
    assert 10.3 == cell.runs.runs[0].record.times.client_s
    report = render_markdown(analysis)
    assert "Client seconds of 8 runs are from logs, in steps of 0.01 s" in report
    assert "Outputs that dumps or logs name were not given" in report
    assert 8 == sum(entry.kind == "log" for entry in origin_of(analysis).files)


def test_an_edited_log_contradicts_the_record(tmp_path: Path) -> None:
    for block in (1, 2):
        for path in write_block(tmp_path / "old", block):
            write_log(path)
    analysis = imported(tmp_path, tmp_path / "old")
    log = analysis.directory / "slots" / "old" / "01-1-A" / "stdout.log"
    log.write_text(log.read_text(encoding="utf-8").replace("10.30", "10.90"), encoding="utf-8")
    lost = analyse(Campaign.open(analysis.directory)).cells[0].runs.lost
    assert ["CONTRADICTION"] == [block.slot.reason_code for block in lost if block.slot]


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("WARNING: Falling back to diffusers backend", "FALLBACK"),
        ("[Diffusion BCG] serving signature MISSED 2 captured graph(s); running eager.", "MISSING_GRAPH"),
        ("[Diffusion BCG] capture failed for signature x (y); this signature will run eager.", "MISSING_GRAPH"),
        ("Warmup failed, so this request ran cold", "INVALID_RUN"),
        ("Generation failed: out of cheese", "INVALID_RUN"),
    ],
)
def test_what_a_log_says_of_its_run_voids_it(tmp_path: Path, extra: str, code: str) -> None:
    paths = write_block(tmp_path / "old", 1)
    write_log(paths[1], extra=extra)
    (cell,) = imported(tmp_path, tmp_path / "old").cells
    assert [Word.INVALID, code] == [cell.word, cell.verdict.reasons[0].code]
    assert "--resume" not in cell.verdict.reasons[0].next_step


def test_a_log_of_another_run_gives_no_time(tmp_path: Path) -> None:
    for path in write_block(tmp_path / "old", 1):
        write_log(path)
    log = tmp_path / "old" / "r1-a1.log"
    log.write_text(log.read_text(encoding="utf-8").replace("10.00", "12.34"), encoding="utf-8")
    analysis = imported(tmp_path, tmp_path / "old")
    assert analysis.cells[0].runs.runs[0].record.times.client_s is None
    assert "These logs state other times than their dumps" in render_markdown(analysis)


def test_runs_that_warmed_up_and_runs_that_did_not_are_unequal(tmp_path: Path) -> None:
    for block in (1, 2):
        for path in write_block(tmp_path / "old", block):
            write_log(path, is_warm="-a" in path.name)
    (cell,) = imported(tmp_path, tmp_path / "old").cells
    assert [Word.INVALID, "UNEQUAL_WORK"] == [cell.word, cell.verdict.reasons[0].code]


def test_a_log_of_another_program_says_nothing() -> None:
    assert read_sglang_log("") == read_sglang_log("hello\nwarming up\n")


def test_files_that_belong_to_no_run_are_named(tmp_path: Path) -> None:
    write_block(tmp_path / "old", 1)
    write_dump(tmp_path / "old" / "rejected.json", {})
    (tmp_path / "old" / "README.md").write_text("notes", encoding="utf-8")
    report = render_markdown(imported(tmp_path, tmp_path / "old"))
    assert "2 files beside the dumps not imported: old/README.md, old/rejected.json" in report


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b'{"total_duration_ms": 1', "it ends too early", id="truncated"),
        pytest.param(b"[1, 2]", "holds a list, expected a JSON object", id="list"),
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"\xff\x00\x01", "is not text", id="no text"),
        pytest.param(b'{"total_duration_ms": "fast"}', "expected a number", id="no number"),
        pytest.param(b'{"total_duration_ms": 5, "request_id": "\\ud800"}', "half a character", id="half a character"),
    ],
)
def test_unreadable_dumps_are_named_and_nothing_is_left(tmp_path: Path, content: bytes, words: str) -> None:
    write_block(tmp_path / "old", 1)
    (tmp_path / "old" / "r1-b1.json").write_bytes(content)
    with pytest.raises(FuseproofError) as caught:
        imported(tmp_path, tmp_path / "old")
    assert words in caught.value.message
    assert str(tmp_path / "old" / "r1-b1.json") in caught.value.message
    assert ["old"] == [path.name for path in tmp_path.iterdir()]


def test_a_byte_order_mark_is_accepted_and_kept(tmp_path: Path) -> None:
    (path, *_) = write_block(tmp_path / "old", 1)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    analysis = imported(tmp_path, tmp_path / "old")
    kept = analysis.directory / "slots" / "old" / "01-1-A" / "perf.json"
    assert path.read_bytes() == kept.read_bytes()


def test_links_pipes_and_huge_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path, *_) = write_block(tmp_path / "old", 1)
    elsewhere = tmp_path / "elsewhere.json"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(FuseproofError, match=r"r1-a1\.json is a symbolic link"):
        imported(tmp_path, tmp_path / "old")
    path.unlink()
    elsewhere.rename(path)
    picture = path.with_suffix(".png")
    picture.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FuseproofError, match=r"r1-a1\.png is a symbolic link"):
        imported(tmp_path, tmp_path / "old")
    picture.unlink()
    path.with_suffix(".log").mkdir()
    imported(tmp_path, tmp_path / "old", name="one")
    write_picture(path)
    monkeypatch.setattr("fuseproof.harness.importing.records.copy_file", refuse_large)
    with pytest.raises(FuseproofError, match="is larger than"):
        imported(tmp_path, tmp_path / "old", name="two")
    assert not (tmp_path / "two").exists()


def refuse_large(file: Any, target: Path, largest_bytes: int = 0) -> str:
    from fuseproof.harness.importing.files import check_plain

    check_plain(file, 10)
    return ""


def test_a_picture_that_is_none_is_named(tmp_path: Path) -> None:
    (path, *_) = write_block(tmp_path / "old", 1)
    path.with_suffix(".png").write_bytes(b"no picture")
    with pytest.raises(FuseproofError, match=r"r1-a1\.json cannot be imported") as caught:
        imported(tmp_path, tmp_path / "old")
    assert "outputs/r1-a1.png" in caught.value.message


def test_outputs_that_a_dump_states_and_nobody_gave_are_named(tmp_path: Path) -> None:
    for block in (1, 2):
        write_block(tmp_path / "old", block, outputs=[{"path": "pictures/x.png", "raw_sha256": "0" * 64}])
    analysis = imported(tmp_path, tmp_path / "old")
    assert "none" == analysis.cells[0].outputs.status
    assert "Outputs that dumps or logs name were not given: x.png" in render_markdown(analysis)


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_times_at_the_ends_of_the_calendar_are_none(tmp_path: Path, moment: str) -> None:
    for number, name in enumerate(("a1", "b1", "b2", "a2")):
        write_dump(tmp_path / "old" / f"r1-{name}.json", sglang_dump(10.0 + number) | {"timestamp": moment})
    assert "not recorded" == imported(tmp_path, tmp_path / "old").campaign.created
    text = f'schema = 1\ncreated = "{moment}"\n'
    with pytest.raises(UsageError, match="created"):
        imported(tmp_path, tmp_path / "old", name="other", manifest=with_manifest(tmp_path, text))
