"""Slots whose files disagree, dumps that are copies, slots that are gone, and values that no report can hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError
from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import write_report
from fuseproof.harness.statistics.verdict import Word
from tests.harness.campaign_builder import CampaignBuilder, picture_png

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
SLOT = "slots/panda/01-2-B"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return CampaignBuilder(tmp_path / "c").blocks(FASTER, denoise_s=5.0).write()


def analysed(folder: Path) -> CampaignAnalysis:
    return analyse(Campaign.open(folder))


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")


def put(*keys: str | int, value: Any) -> Callable[[Any], None]:
    def change(values: Any) -> None:
        for key in keys[:-1]:
            values = values[key]
        values[keys[-1]] = value

    return change


def state_other_raw_hash(dump: dict[str, Any]) -> None:
    dump["outputs"] = [{"path": "outputs/image-0.png", "raw_sha256": "0" * 64}]


@pytest.mark.parametrize(
    ("sentence", "file", "change"),
    [
        pytest.param(
            "its result.json says 1 s of worker time and its perf.json 9.5 s of worker time",
            "result.json",
            put("times", "worker_s", value=1.0),
            id="edited result",
        ),
        pytest.param(
            "says 5 s of denoise time and its perf.json 1 s",
            "perf.json",
            put("timers", "denoise_ms", value=1000.0),
            id="rewritten dump",
        ),
        pytest.param(
            "says 3 s of load time and its perf.json no load time",
            "result.json",
            put("times", "load_s", value=3.0),
            id="invented timer",
        ),
        pytest.param("hold different raw hashes of outputs/image-0.png", "perf.json", state_other_raw_hash, id="raw"),
    ],
)
def test_contradicting_slot_costs_its_block(
    folder: Path, sentence: str, file: str, change: Callable[[dict[str, Any]], Any]
) -> None:
    edit(folder / SLOT / file, change)
    analysis = write_report(folder)
    (cell,) = analysis.cells
    assert [2] == [block.number for block in cell.runs.blocks]
    assert (6, Word.INCONCLUSIVE) == (analysis.exit_code(), cell.word)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert sentence in text.split("## Limitations")[1]
    assert "block 1 does not count: candidate CONTRADICTION in panda/01-2-B: " in text.split("## Setup")[0]
    assert any(sentence in line for line in analysis.summary_lines())
    assert "All are kept on disk" not in text


@pytest.mark.parametrize(
    ("sentence", "content"),
    [
        pytest.param("is not the file whose hash its result.json holds", picture_png(2), id="another picture"),
        pytest.param("holds the hash of outputs/image-0.png, which is missing", None, id="no picture"),
    ],
)
def test_changed_output_costs_its_block(folder: Path, sentence: str, content: bytes | None) -> None:
    picture = folder / SLOT / "outputs/image-0.png"
    picture.unlink() if content is None else picture.write_bytes(content)
    analysis = analysed(folder)
    assert 6 == analysis.exit_code()
    assert any(sentence in line for line in analysis.summary_lines())


def test_cell_without_a_block_left_is_invalid(folder: Path) -> None:
    for slot in (SLOT, "slots/panda/02-1-B"):
        edit(folder / slot / "result.json", put("times", "worker_s", value=1.0))
    analysis = analysed(folder)
    assert (6, Word.INVALID) == (analysis.exit_code(), analysis.cells[0].word)


def test_copied_dump_names_both_slots_and_voids_the_cell(folder: Path) -> None:
    shutil.copy(folder / "slots/panda/02-1-B/perf.json", folder / SLOT / "perf.json")
    analysis = analysed(folder)
    (cell,) = analysis.cells
    assert (6, Word.INVALID) == (analysis.exit_code(), cell.word)
    details = " ".join(reason.detail for reason in cell.verdict.reasons)
    assert "COPIED_DUMP in panda/01-2-B: its perf.json is that of panda/02-1-B" in details
    assert "COPIED_DUMP in panda/02-1-B: its perf.json is that of panda/01-2-B" in details


@pytest.mark.parametrize("what", ["folder", "result.json"])
def test_missing_slot_is_shown_and_the_rest_rendered(folder: Path, what: str) -> None:
    shutil.rmtree(folder / SLOT) if what == "folder" else (folder / SLOT / "result.json").unlink()
    analysis = write_report(folder)
    assert [2] == [block.number for block in analysis.cells[0].runs.blocks]
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert f"block 1 lost: candidate MISSING in panda/01-2-B: its {what} is missing" in text
    assert "1 run missing from the disk" in text and "All are kept on disk" not in text


LONE = "\ud800"


@pytest.mark.parametrize(
    ("sentence", "file", "change"),
    [
        ("'int' object is not iterable", "campaign.json", put("command", value=7)),
        ("block: Input should be", f"{SLOT}/result.json", put("block", value="one")),
        ("command.0 is no text", "campaign.json", put("command", 0, value=7)),
        ("plan.title holds U\\+D800", "campaign.json", put("plan", "title", value=LONE)),
        ("commit_hash holds U\\+D800", f"{SLOT}/perf.json", put("commit_hash", value=LONE)),
        ("id is .*, expected 'panda/01-2-B'", f"{SLOT}/result.json", put("id", value=LONE)),
        ("outputs.0.path is no file name", f"{SLOT}/result.json", put("outputs", 0, "path", value=LONE)),
        ("outputs.0.path leads out", f"{SLOT}/result.json", put("outputs", 0, "path", value="../../x")),
        ("times.load_s is 1e\\+308", f"{SLOT}/result.json", put("times", "load_s", value=1e308)),
        ("memory.peak_rss_mib is nan", f"{SLOT}/result.json", put("memory", "peak_rss_mib", value=float("nan"))),
    ],
    ids=["no command", "block", "command", "title", "commit", "id", "path", "path outside", "huge time", "nan memory"],
)
def test_damage_is_one_sentence_with_the_file(
    folder: Path, sentence: str, file: str, change: Callable[[dict[str, Any]], Any]
) -> None:
    edit(folder / file, change)
    with pytest.raises(FuseproofError, match=sentence) as caught:
        write_report(folder)
    assert file in caught.value.message and caught.value.next_step
    assert caught.value.message.encode("utf-8")
