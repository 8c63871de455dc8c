"""Outputs compared by the hashes in perf dumps: levels, requests, and what is said in both modes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.perf.abba import compare_blocks
from fuseproof.harness.perf.abba_text import render_abba
from fuseproof.harness.perf.blocks import read_blocks
from fuseproof.harness.perf.comparison import compare_dumps
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.harness.perf.outputs import OutputsComparison, compare_outputs
from fuseproof.harness.perf.text import render_comparison
from tests.harness.perf_dump_files import LONGLIVE2, write_block, write_dump


def output(raw: str | None, pixels: str | None, file: str | None, **more: Any) -> dict[str, Any]:
    return {"raw_sha256": raw, "pixels_sha256": pixels, "file_sha256": file, **more}


SAME = output("r", "p", "f")
BELOW_8_BIT = output("r2", "p", "f")
CASES = {
    "raw arrays": ("identical in raw arrays (1 of 1)", [SAME], [SAME]),
    "another file": ("identical in raw arrays (1 of 1)", [SAME], [output("r", "p", "f2")]),
    "no raw arrays": (
        "identical in decoded pixels (1 of 1)",
        [output(None, "p", "f")],
        [output("r", "p", "f2")],
    ),
    "file bytes alone": ("identical in file bytes (1 of 1)", [{"file_sha256": "f"}], [{"file_sha256": "f"}]),
    "below 8 bit": (
        "different: 0 of 1 identical in raw arrays; request 0 still identical in decoded pixels",
        [SAME],
        [BELOW_8_BIT],
    ),
    "nothing agrees": (
        "different: 1 of 2 identical in raw arrays; request 7 identical at no recorded level",
        [SAME, output("a", "b", "c", request=7)],
        [SAME, output("x", "y", "z", request=7)],
    ),
    "levels apart": (
        "different: 0 of 3 identical in raw arrays; requests 0, 2 still identical in decoded pixels; "
        "request 1 identical at no recorded level",
        [SAME, SAME, SAME],
        [BELOW_8_BIT, output("x", "y", "z"), BELOW_8_BIT],
    ),
    "one output more": (
        "different: 1 of 2 identical in raw arrays; request 1 made by one of the runs only",
        [SAME],
        [SAME, SAME],
    ),
    "constant": (
        "identical in raw arrays (1 of 1); request 0 is degenerate (constant): agreement proves nothing",
        [SAME | {"degenerate": "constant"}],
        [SAME],
    ),
    "no outputs": ("not recorded by both runs, so not compared", [], [SAME]),
    "nothing at all": ("not recorded", [], []),
    "no hash in common": ("not recorded by both runs, so not compared", [{"raw_sha256": "r"}], [{"file_sha256": "f"}]),
    "a hash that is none": ("not recorded", [{"raw_sha256": 1}], [{"raw_sha256": 1}]),
}


def compared(tmp_path: Path, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> OutputsComparison:
    files = [write_dump(tmp_path / f"{name}.json", outputs=found) for name, found in (("a", before), ("b", after))]
    return compare_outputs(*(read_perf_dump(path) for path in files))


@pytest.mark.parametrize(("sentence", "before", "after"), CASES.values(), ids=CASES.keys())
def test_what_is_said_of_outputs(
    tmp_path: Path, sentence: str, before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    assert sentence == compared(tmp_path, before, after).sentence


def test_a_long_list_of_requests_is_cut(tmp_path: Path) -> None:
    sentence = compared(tmp_path, [SAME] * 10, [BELOW_8_BIT] * 10).sentence
    assert "requests 0, 1, 2, 3, 4, 5, 6, 7 and 2 more still identical in decoded pixels" in sentence


def test_a_pair_has_its_outputs(tmp_path: Path) -> None:
    files = [write_dump(tmp_path / "a.json", outputs=[SAME]), write_dump(tmp_path / "b.json", outputs=[BELOW_8_BIT])]
    comparison = compare_dumps([read_perf_dump(path) for path in files])
    text = render_comparison(comparison)
    assert "### Outputs\n\nOutputs: different: 0 of 1 identical in raw arrays; request 0 still identical" in text
    assert "compare-media" not in text
    assert "differs: outputs" not in text
    (entry,) = json.loads(json.dumps(comparison.to_json(), allow_nan=False))["outputs"]
    assert ("different", "raw", 0, 1) == tuple(entry[key] for key in ("status", "level", "equal", "total"))
    assert [{"request": 0, "agrees_in": "pixels", "is_unpaired": False}] == entry["differing"]
    assert comparison.is_equal_work


def test_different_pictures_lead_to_compare_media(tmp_path: Path) -> None:
    made = {"a": SAME, "b": output("x", "y", "z")}
    files = [write_dump(tmp_path / f"{name}.json", outputs=[found]) for name, found in made.items()]
    text = render_comparison(compare_dumps([read_perf_dump(path) for path in files]))
    assert "- different: 0 of 1 identical in raw arrays; request 0 identical at no recorded level.\n- How far" in text
    assert "`fuseproof compare-media`" in text


def test_an_identical_pair_is_one_line(tmp_path: Path) -> None:
    files = [write_dump(tmp_path / f"{name}.json", outputs=[SAME]) for name in "ab"]
    text = render_comparison(compare_dumps([read_perf_dump(path) for path in files]))
    assert "### Outputs\n\nOutputs: identical in raw arrays (1 of 1).\n" in text


def test_several_candidates_are_told_apart(tmp_path: Path) -> None:
    made = {"a": SAME, "b": SAME, "c": BELOW_8_BIT}
    files = [write_dump(tmp_path / f"{name}.json", outputs=[found]) for name, found in made.items()]
    text = render_comparison(compare_dumps([read_perf_dump(path) for path in files]))
    assert "- b.json against a.json: identical in raw arrays (1 of 1)." in text
    assert "- c.json against a.json: different: 0 of 1" in text


def test_sglangs_dumps_record_no_outputs() -> None:
    for text in (
        render_comparison(compare_dumps([read_perf_dump(path) for path in LONGLIVE2[:2]])),
        render_abba(compare_blocks(read_blocks(LONGLIVE2))),
    ):
        assert "### Outputs\n\nOutputs: not recorded.\n" in text


def test_blocks_have_their_outputs(tmp_path: Path) -> None:
    arms = {"A": {"outputs": [SAME]}, "B": {"outputs": [SAME]}}
    seconds = (10.0, 9.0, 9.01, 10.01)
    files = [*write_block(tmp_path, seconds, **arms), *write_block(tmp_path, seconds, name="r2", **arms)]
    comparison = compare_blocks(read_blocks(files))
    assert "Outputs: identical in raw arrays (1 of 1) in each of 8 runs." in render_abba(comparison)
    assert 7 == len(comparison.to_json()["outputs"])


def test_blocks_whose_candidate_makes_another_picture(tmp_path: Path) -> None:
    arms = {"A": {"outputs": [SAME]}, "B": {"outputs": [BELOW_8_BIT]}}
    seconds = (10.0, 9.0, 9.01, 10.01)
    files = [*write_block(tmp_path, seconds, **arms), *write_block(tmp_path, seconds, name="r2", **arms)]
    comparison = compare_blocks(read_blocks(files))
    text = render_abba(comparison)
    labels = "r1-b1.json, r1-b2.json, r2-b1.json, r2-b2.json"
    assert f"- {labels} against r1-a1.json: different: 0 of 1 identical in raw arrays" in text
    assert "- r1-a2.json, r2-a1.json, r2-a2.json against r1-a1.json: identical in raw arrays (1 of 1)." in text
    assert 0 == comparison.exit_code
