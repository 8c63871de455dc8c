"""Importing old evidence: figures, bytes, order, missing runs, and what is claimed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.folder import CAMPAIGN_FILE, Campaign
from fuseproof.harness.campaign.session import CampaignSession
from fuseproof.harness.perf.abba import compare_blocks
from fuseproof.harness.perf.blocks import read_blocks
from fuseproof.harness.report import render_markdown
from fuseproof.harness.statistics.verdict import Word
from tests.harness.campaign_builder import CampaignBuilder
from tests.harness.old_evidence import (
    KLEIN,
    LONGLIVE2,
    ORDER,
    imported,
    origin_of,
    sglang_dump,
    tree,
    write_block,
    write_dump,
)


@pytest.mark.parametrize(
    ("source", "blocks", "expected"),
    [
        pytest.param(KLEIN, ("r1", "r2"), ["2.57%", "2.57 % [2.39, 2.74]"], id="klein"),
        pytest.param(
            LONGLIVE2, ("i2v-r1", "i2v-r3"), ["6.07%", "5.53%", "5.80 % [5.29, 6.32]"], id="longlive2, blocks 1 and 3"
        ),
    ],
)
def test_recorded_evidence_has_the_figures_of_compare_perf(
    tmp_path: Path, source: Path, blocks: tuple[str, ...], expected: list[str]
) -> None:
    analysis = imported(tmp_path, source)
    known = compare_blocks(read_blocks([source / f"{block}-{arm}.json" for block in blocks for arm in ORDER]))
    (cell,) = analysis.cells
    for metric in cell.metrics:
        theirs, ours = known.verdicts[metric.name].comparison, metric.verdict and metric.verdict.comparison
        assert theirs is not None
        assert ours is not None
        assert (theirs.reduction, theirs.interval, theirs.scatter) == (ours.reduction, ours.interval, ours.scatter)
        assert [block.mean_reduction for block in theirs.blocks] == [block.mean_reduction for block in ours.blocks]
        assert known.verdicts[metric.name].word is (metric.verdict and metric.verdict.word)
    assert Word.FASTER is cell.word
    report = render_markdown(analysis)
    assert [] == [text for text in expected if text not in report]


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "klein"
    copy.mkdir(parents=True)
    for path in KLEIN.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    first = imported(tmp_path, KLEIN, name="one")
    second = imported(tmp_path, copy, name="two")
    assert tree(first.directory) == tree(second.directory)
    assert "2026-09-20T19:33:52.112+00:00" == first.campaign.created


def test_sources_are_kept_byte_for_byte_and_listed_with_their_hashes(tmp_path: Path) -> None:
    analysis = imported(tmp_path, KLEIN, labels="{block}-{arm}")
    held = {entry.path: entry for entry in origin_of(analysis).files}
    assert {f"klein/{path.name}" for path in KLEIN.iterdir()} == set(held)
    for path in KLEIN.iterdir():
        entry = held[f"klein/{path.name}"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry.sha256
        assert path.read_bytes() == (analysis.directory / "slots" / str(entry.slot) / "perf.json").read_bytes()


def test_the_report_says_first_that_nothing_was_observed(tmp_path: Path) -> None:
    report = render_markdown(imported(tmp_path, KLEIN))
    summary = report.partition("## Setup")[0]
    assert (
        "imported: 8 perf dumps measured by sglang (version not recorded), not by this program: order, isolation and "
        "telemetry are as recorded there and were not observed" in summary
    )
    assert "a fresh process for every run" not in report
    assert "no GPU" not in report
    assert "Machine: not recorded." in report
    assert "both arms are the same command" not in report
    assert "--resume" not in report


def test_nothing_is_claimed_of_outputs_and_memory_that_were_not_given(tmp_path: Path) -> None:
    write_block(tmp_path / "old", 1)
    write_block(tmp_path / "old", 2)
    analysis = imported(tmp_path, tmp_path / "old")
    (cell,) = analysis.cells
    assert "none" == cell.outputs.status
    assert () == cell.outputs.determinism
    assert "unknown" == cell.memory.agreement
    assert {None} == {run.record.contention.busy for run in cell.runs.runs}
    report = render_markdown(analysis)
    assert "no outputs were imported" in report
    assert "deterministic" not in report


@pytest.mark.parametrize(
    ("order", "orientation", "word"),
    [
        pytest.param("a1 b1 b2 a2", "ABBA", Word.FASTER, id="as labelled"),
        pytest.param("b1 a1 a2 b2", "BAAB", Word.FASTER, id="the candidate first, by time"),
        pytest.param("a1 a2 b1 b2", "ABBA", Word.INVALID, id="one arm after the other"),
    ],
)
def test_the_order_is_checked_against_the_times_in_the_dumps(
    tmp_path: Path, order: str, orientation: str, word: Word
) -> None:
    for block in (1, 2):
        write_block(tmp_path / "old", block, order)
    analysis = imported(tmp_path, tmp_path / "old")
    (cell,) = analysis.cells
    assert word is cell.word
    assert {orientation} == {slot.orientation for slot in cell.runs.slots}
    if word is Word.INVALID:
        assert "SLOT_ORDER" in {reason.code for reason in cell.verdict.reasons}
        assert "it ran in the order A1 A2 B1 B2" in cell.verdict.reasons[0].detail
        assert 6 == analysis.exit_code()


def test_an_order_that_nothing_shows_is_said(tmp_path: Path) -> None:
    for block in (1, 2):
        write_block(tmp_path / "old", block, is_timed=False)
    analysis = imported(tmp_path, tmp_path / "old")
    assert "not recorded" == analysis.campaign.created
    report = render_markdown(analysis)
    assert "In 2 of 2 blocks nothing shows the order in which the runs ran" in report
    assert "their order by the files' labels alone" in report


def test_a_block_with_a_missing_slot_is_kept_and_not_judged(tmp_path: Path) -> None:
    for block in (1, 2, 3):
        write_block(tmp_path / "old", block)
    (tmp_path / "old" / "r2-b2.json").unlink()
    analysis = imported(tmp_path, tmp_path / "old")
    (cell,) = analysis.cells
    assert [1, 3] == [block.number for block in cell.runs.blocks]
    assert 11 == sum(slot.state == "done" for slot in cell.runs.slots)
    (absent,) = [slot for slot in cell.runs.slots if slot.state == "absent"]
    assert ("old/02-3-B", "NOT_IMPORTED") == (absent.id, absent.reason_code)
    assert "block 2 lost: candidate NOT_IMPORTED in old/02-3-B: no perf dump of B2 of block r2" in render_markdown(
        analysis
    )


def test_a_skipped_block_is_shown(tmp_path: Path) -> None:
    assert "block 2 lost: baseline NOT_IMPORTED" in render_markdown(imported(tmp_path, LONGLIVE2))


def test_without_a_complete_block_nothing_is_judged_and_no_advice_is_given_that_cannot_be_followed(
    tmp_path: Path,
) -> None:
    write_block(tmp_path / "old", 1, "a1 b1")
    analysis = imported(tmp_path, tmp_path / "old")
    assert Word.INCONCLUSIVE is analysis.cells[0].word
    assert "--resume" not in render_markdown(analysis)


def test_two_files_for_one_place_are_refused(tmp_path: Path) -> None:
    write_block(tmp_path / "old", 1)
    write_block(tmp_path / "old", 1, name="block-{block}-{arm}")
    with pytest.raises(UsageError) as caught:
        imported(tmp_path, tmp_path / "old")
    assert "old/block-1-a1.json and old/r1-a1.json are both labelled A1 of block" in caught.value.message


def test_a_copied_dump_and_a_run_given_twice_are_found(tmp_path: Path) -> None:
    write_block(tmp_path / "copied", 1)
    (tmp_path / "copied" / "r1-b2.json").write_bytes((tmp_path / "copied" / "r1-b1.json").read_bytes())
    analysis = imported(tmp_path, tmp_path / "copied", name="one")
    assert "COPIED_DUMP" in {reason.code for reason in analysis.cells[0].verdict.reasons}

    (first, *_) = write_block(tmp_path / "twice", 1)
    values = json.loads(first.read_text(encoding="utf-8"))
    write_dump(tmp_path / "twice" / "r1-a2.json", values | {"note": "edited"})
    analysis = imported(tmp_path, tmp_path / "twice", name="two")
    assert "REPEATED_RUN" in {reason.code for reason in analysis.cells[0].verdict.reasons}


def test_arms_that_are_not_one_program_are_no_measurement(tmp_path: Path) -> None:
    paths = write_block(tmp_path / "old", 1)
    values = json.loads(paths[2].read_text(encoding="utf-8"))
    write_dump(paths[2], values | {"commit_hash": "c" * 40})
    (cell,) = imported(tmp_path, tmp_path / "old").cells
    assert [Word.INVALID, "ARM_MIXED"] == [cell.word, cell.verdict.reasons[0].code]


def test_both_arms_at_one_commit_are_warned_of(tmp_path: Path) -> None:
    for block in (1, 2):
        write_block(tmp_path / "old", block, commit_hash="a" * 40)
    (cell,) = imported(tmp_path, tmp_path / "old").cells
    assert "SAME_PROGRAM" in {warning.code for warning in cell.warnings}


def test_runs_that_overlap_by_their_own_times_are_named(tmp_path: Path) -> None:
    write_block(tmp_path / "old", 1)
    values = sglang_dump(9.5, arm="b", timestamp="2026-09-20T12:10:05+00:00", request_id="x")
    write_dump(tmp_path / "old" / "r1-b1.json", values)
    report = render_markdown(imported(tmp_path, tmp_path / "old"))
    assert "these runs worked at the same time: old/r1-a1.json and old/r1-b1.json" in report


@pytest.mark.parametrize(
    ("origin", "words"),
    [([], "key origin"), ({"imported_by": 3}, "key origin.imported_by"), (None, "key origin")],
)
def test_a_damaged_origin_is_an_error_that_names_file_and_key(tmp_path: Path, origin: object, words: str) -> None:
    folder = imported(tmp_path, KLEIN).directory
    path = folder / CAMPAIGN_FILE
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"origin": origin}), encoding="utf-8")
    with pytest.raises(FuseproofError, match=words):
        Campaign.open(folder)


def test_a_campaign_folder_of_ours_can_be_imported(tmp_path: Path) -> None:
    theirs = CampaignBuilder(tmp_path / "ours").blocks(((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))).write()
    analysis = imported(tmp_path, theirs / "slots", labels="{cell}/{block}-{position}-{arm}/perf")
    (cell,) = analysis.cells
    assert ("panda", 2, "identical") == (cell.name, len(cell.runs.blocks), cell.outputs.status)
    assert ["ABBA", "BAAB"] == [block.orientation for block in cell.runs.blocks]
    assert "measured by fuseproof (version not recorded)" in render_markdown(analysis)


def test_an_imported_campaign_cannot_be_resumed(tmp_path: Path) -> None:
    folder = imported(tmp_path, KLEIN).directory
    with pytest.raises(UsageError, match="was imported"):
        CampaignSession(command=["fuseproof", "abba"], environment={}).resume(folder, None)
