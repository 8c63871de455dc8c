"""``--format csv`` and ``--format junit``: what a spreadsheet and a build server are told."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fuseproof.cli.main import main
from fuseproof.harness.report import render_csv, render_junit
from fuseproof.harness.report.slot_rows import COLUMNS
from tests.harness.campaign_builder import CampaignBuilder, Run
from tests.harness.test_fastpath_losses import FUSED, OFF, REJECTED
from tests.harness.test_report_claims import analysed

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
SLOWER = ((9.5, 10.0, 10.02, 9.51), (10.01, 9.52, 9.5, 10.03))
NOISY = ((10.0, 9.5, 10.6, 10.02), (9.52, 10.5, 9.03, 9.9))
SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"
LOST = Run(state="invalid", reason_code="EXIT", reason="it exited with 1")


def builder_in(folder: Path, **plan: Any) -> CampaignBuilder:
    return CampaignBuilder(folder / "campaign", **plan)


def rows_of(builder: CampaignBuilder) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render_csv(analysed(builder)), newline="")))


def test_one_row_a_slot_with_every_number_at_full_precision(tmp_path: Path) -> None:
    builder = builder_in(tmp_path, blocks=3).warmup(Run(worker_s=12.0))
    builder.blocks(FASTER, denoise_s=5.0000000001, peak_reserved_mib=100.25).block([LOST], block=3)
    rows = rows_of(builder)
    assert 10 == len(rows)
    assert ["warmup", *["timed"] * 9] == [row["kind"] for row in rows]
    assert [*["done"] * 9, "invalid"] == [row["state"] for row in rows]
    assert ["no", *["yes"] * 8, "no"] == [row["is_counted"] for row in rows]
    assert ["A1", "B1", "B2", "A2"] == [row["label"] for row in rows[1:5]]
    first, last = rows[1], rows[-1]
    assert ("panda", "1", "1", "1", "A") == tuple(first[name] for name in COLUMNS[:5])
    assert (10.0, 5.0000000001, 19.0) == tuple(float(first[name]) for name in ("worker_s", "denoise_s", "wall_s"))
    assert ("100.25", "1000.0", "") == tuple(
        first[name] for name in ("peak_reserved_mib", "peak_rss_mib", "peak_allocated_mib")
    )
    recorded = json.loads((builder.directory / "slots/panda/01-1-A/result.json").read_text())["outputs"][0]
    assert recorded["raw_sha256"] == first["raw_sha256"]
    assert ("EXIT", "", "it exited with 1") == tuple(last[name] for name in ("reason_code", "raw_sha256", "reason"))


def test_lines_end_as_the_rfc_asks_and_all_have_the_same_columns(tmp_path: Path) -> None:
    builder = builder_in(tmp_path, blocks=3).blocks(FASTER)
    builder.block([Run(state="invalid", reason_code="EXIT", reason='a "b", c\r\nd\x1b[31m')], block=3)
    text = render_csv(analysed(builder))
    assert text.endswith("\r\n")
    assert "\n" not in text.replace("\r\n", ""), "one line a slot"
    assert {len(COLUMNS)} == {len(row) for row in csv.reader(io.StringIO(text, newline=""))}
    assert 'a "b", c d\\u001b[31m' == rows_of(builder)[-1]["reason"]


@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        pytest.param("'=cmd|' /C calc'!A0", "=cmd|' /C calc'!A0", id="equals"),
        pytest.param("'+1+1", "+1+1", id="plus"),
        pytest.param("'-2+3", "-2+3", id="minus"),
        pytest.param("'@SUM(A1)", "@SUM(A1)", id="at"),
        pytest.param("'=1", "\t\r\n =1", id="behind white space"),
        pytest.param("'＝1", "＝1", id="wide equals"),
        pytest.param("a=1", "a=1", id="in the middle"),
        pytest.param("[redacted]", SECRET, id="secret"),
    ],
)
def test_no_text_becomes_a_formula(tmp_path: Path, expected: str, reason: str) -> None:
    builder = builder_in(tmp_path, blocks=3).blocks(FASTER)
    builder.block([Run(state="invalid", reason_code="EXIT", reason=reason)], block=3)
    assert expected == rows_of(builder)[-1]["reason"]


def test_hashes_of_several_outputs_keep_their_order(tmp_path: Path) -> None:
    builder = builder_in(tmp_path).blocks(FASTER, pictures=(1, 2), prompts=("a", "b"))
    recorded = json.loads(_result(builder))["outputs"]
    row = rows_of(builder)[0]
    assert "2" == row["outputs"]
    assert " ".join(output["pixels_sha256"] for output in recorded) == row["pixels_sha256"]


def _result(builder: CampaignBuilder) -> str:
    return (builder.directory / "slots/panda/01-1-A/result.json").read_text(encoding="utf-8")


def outcomes(xml: str, suite: str = "cell panda") -> dict[str, str]:
    """Outcome by check of one suite, as a build server would read it."""
    found = ElementTree.fromstring(xml).find(f"testsuite[@name='{suite}']")
    assert found is not None
    result = {}
    for case in found.findall("testcase"):
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        assert len(kinds) <= 1
        result[case.attrib["name"]] = kinds[0] if kinds else "passed"
    return result


def arms_with_sites(folder: Path, candidate: dict[str, Any] | None) -> CampaignBuilder:
    builder = builder_in(folder)
    for number, (way, row) in enumerate(zip(("ABBA", "BAAB"), FASTER, strict=True), start=1):
        sites = {"A": None, "B": None} if candidate is None else {"A": {"a": OFF}, "B": {"a": candidate}}
        builder.block([Run(worker_s=s, sites=sites[arm]) for arm, s in zip(way, row, strict=True)], block=number)
    return builder


@pytest.mark.parametrize(
    ("expected", "times"),
    [
        pytest.param("passed", FASTER, id="faster"),
        pytest.param("failure", SLOWER, id="slower"),
        pytest.param("skipped", NOISY, id="inconclusive"),
        pytest.param("skipped", FASTER[:1], id="one block tests nothing"),
    ],
)
def test_verdict_is_passed_only_where_something_was_decided(
    tmp_path: Path, expected: str, times: Sequence[Sequence[float]]
) -> None:
    builder = builder_in(tmp_path, blocks=len(times)).blocks(times)
    assert expected == outcomes(render_junit(analysed(builder)))["verdict"]


def test_unequal_work_is_a_failed_verdict(tmp_path: Path) -> None:
    builder = builder_in(tmp_path)
    for number, row in enumerate(FASTER, start=1):
        way = "ABBA" if number == 1 else "BAAB"
        runs = [Run(worker_s=s, config={"seed": 42 if arm == "A" else 43}) for arm, s in zip(way, row, strict=True)]
        builder.block(runs, block=number)
    assert "failure" == outcomes(render_junit(analysed(builder)))["verdict"]


@pytest.mark.parametrize(
    ("expected", "pictures"),
    [
        pytest.param("passed", {"A": 1, "B": 1}, id="equal"),
        pytest.param("failure", {"A": 1, "B": 2}, id="different"),
        pytest.param("failure", {"A": -1, "B": -1}, id="equal and proves nothing"),
    ],
)
def test_contract(tmp_path: Path, expected: str, pictures: dict[str, int]) -> None:
    builder = builder_in(tmp_path)
    for number, (way, row) in enumerate(zip(("ABBA", "BAAB"), FASTER, strict=True), start=1):
        builder.block(
            [Run(worker_s=s, pictures=(pictures[arm],)) for arm, s in zip(way, row, strict=True)], block=number
        )
    assert expected == outcomes(render_junit(analysed(builder)))["contract"]


@pytest.mark.parametrize(
    ("expected", "runs"),
    [
        pytest.param("failure", [LOST], id="an arm failed"),
        pytest.param("skipped", [Run(state="interrupted", reason_code="INTERRUPTED")], id="interrupted"),
        pytest.param("skipped", [], id="not run"),
    ],
)
def test_lost_block(tmp_path: Path, expected: str, runs: list[Run]) -> None:
    builder = builder_in(tmp_path, blocks=3, status="interrupted").blocks(FASTER).block(runs, block=3)
    xml = render_junit(analysed(builder))
    assert expected == outcomes(xml)["slots valid"]
    assert {"complete": "skipped"} == outcomes(xml, "campaign")


@pytest.mark.parametrize(
    ("expected", "candidate"),
    [
        pytest.param("passed", FUSED, id="fused"),
        pytest.param("failure", REJECTED, id="rejected"),
        pytest.param("failure", OFF, id="asked for and off"),
        pytest.param("skipped", None, id="none reported"),
    ],
)
def test_fast_paths(tmp_path: Path, expected: str, candidate: dict[str, Any] | None) -> None:
    analysis = analysed(arms_with_sites(tmp_path, candidate))
    assert expected == outcomes(render_junit(analysis))["fast paths"]


def test_counts_add_up_and_skipped_is_no_pass(tmp_path: Path) -> None:
    root = ElementTree.fromstring(render_junit(analysed(builder_in(tmp_path).blocks(SLOWER))))
    assert ("5", "1", "0", "1") == tuple(root.attrib[name] for name in ("tests", "failures", "errors", "skipped"))
    for name in ("tests", "failures", "skipped"):
        assert int(root.attrib[name]) == sum(int(suite.attrib[name]) for suite in root)
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None and "SLOWER" == failure.attrib["type"]
    assert failure.attrib["message"].startswith("SLOWER: panda: Worker E2E +5.34 % latency")


def test_hostile_and_private_text_is_valid_xml(tmp_path: Path) -> None:
    hostile = f"]]> <b a='1'>&amp; \x00\x1b\ufffe \U0001f600 {SECRET} /home/anna/x"
    builder = builder_in(tmp_path, blocks=3).blocks(FASTER)
    builder.block([Run(state="invalid", reason_code="EXIT", reason=hostile)], block=3)
    xml = render_junit(analysed(builder))
    xml.encode("utf-8")
    text = "".join(ElementTree.fromstring(xml).itertext())
    assert "]]> <b a='1'>&amp; \\u0000\\u001b" in text
    assert "anna" not in xml and SECRET not in xml


@pytest.mark.parametrize("output_format", ["csv", "junit"])
@pytest.mark.parametrize(
    ("expected", "candidate"), [pytest.param(0, 1, id="kept"), pytest.param(4, 2, id="contract broken")]
)
def test_exit_codes_are_those_of_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output_format: str, expected: int, candidate: int
) -> None:
    builder = builder_in(tmp_path)
    for number, (way, row) in enumerate(zip(("ABBA", "BAAB"), FASTER, strict=True), start=1):
        runs = [Run(worker_s=s, pictures=(1 if arm == "A" else candidate,)) for arm, s in zip(way, row, strict=True)]
        builder.block(runs, block=number)
    folder = builder.write()
    assert expected == main(["report", str(folder), "--format", output_format])
    first = capsys.readouterr().out
    render = render_csv if output_format == "csv" else render_junit
    assert render(analysed(builder)) == first
    assert expected == main(["report", str(folder), "--format", output_format])
    assert first == capsys.readouterr().out
