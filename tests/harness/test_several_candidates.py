"""Campaigns of three arms as reports see them: each candidate against the baseline, every slot accounted for once."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fuseproof.harness.analysis.audit import audit
from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.analysis.claims import claims
from fuseproof.harness.analysis.treatment import treatment_text
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report.build import build_document
from fuseproof.harness.report.junit import render_junit
from fuseproof.harness.report.markdown import render_document
from fuseproof.harness.report.slot_rows import render_csv
from fuseproof.harness.report.write import write_report
from fuseproof.schedules.order import arms_in_order, orientation
from tests.harness.campaign_builder import CampaignBuilder, Run

JITTER = (0.0, 0.002, -0.002, 0.001, -0.001, 0.0015)
PANDA = "panda: candidate"
ABLATION = "panda: ablation"


def three_arms(
    directory: Path, changes: dict[str, dict[str, object]] | None = None, blocks: int = 3
) -> CampaignBuilder:
    """A takes 10 s, B 9 s, C 10 s; ``changes`` are of an arm's runs, by letter."""
    builder = CampaignBuilder(directory, blocks=blocks, further={"ablation": "--fastpaths=auto --seed=42"})
    seconds = {"A": 10.0, "B": 9.0, "C": 10.0}
    for block in range(blocks):
        way = arms_in_order(orientation(block, "mirrored", 3))
        runs = []
        for slot, arm in enumerate(way):
            own: dict[str, object] = {"worker_s": seconds[arm] * (1 + JITTER[(slot + block) % 6])}
            runs.append(Run(**own | (changes or {}).get(arm, {})))  # type: ignore[arg-type]
        builder.block(runs, block=block + 1)
    return builder


def analysed(builder: CampaignBuilder) -> CampaignAnalysis:
    return analyse(Campaign.open(builder.write()))


@pytest.mark.parametrize("noted", [pytest.param((3,), id="noted"), pytest.param((), id="by-nobody-knows-whom")])
def test_a_whole_set_of_added_blocks_gives_a_word_at_the_stricter_level(tmp_path: Path, noted: tuple[int, ...]) -> None:
    builder = three_arms(tmp_path / "c", blocks=6)
    builder.plan["blocks"] = 3
    campaign = Campaign.open(builder.write())
    for number in noted:
        campaign.note_added_blocks(number)
    analysis = analyse(Campaign.open(campaign.directory))
    assert [(PANDA, "FASTER"), (ABLATION, "SAME")] == [(cell.name, cell.word.value) for cell in analysis.cells]
    for cell, earlier in zip(analysis.cells, ("FASTER", "SAME"), strict=True):
        assert cell.verdict.comparison is not None
        assert 0.01 == cell.verdict.comparison.alpha
        told = {warning.code: warning.detail for warning in cell.verdict.warnings}
        assert f"3 blocks beyond the 3 planned; on those alone the word is {earlier}" == told["ADDED_BLOCKS"]


def test_a_set_of_added_blocks_that_is_not_whole_gives_none(tmp_path: Path) -> None:
    builder = three_arms(tmp_path / "c", blocks=5)
    builder.plan["blocks"] = 3
    assert ["UNPAIRED_BLOCKS"] * 2 == [cell.verdict.reasons[0].code for cell in analysed(builder).cells]


def test_every_candidate_is_held_against_the_baseline(tmp_path: Path) -> None:
    analysis = analysed(three_arms(tmp_path / "c"))
    assert [(PANDA, "FASTER"), (ABLATION, "SAME")] == [(cell.name, cell.word.value) for cell in analysis.cells]
    assert [PANDA, ABLATION] == [claim.name for claim in claims(analysis)]
    assert all(claim.is_claimed for claim in claims(analysis))
    assert 0 == analysis.exit_code()
    assert [10, 10] == [
        cell.verdict.comparison.degrees_of_freedom for cell in analysis.cells if cell.verdict.comparison
    ]


def test_every_slot_is_accounted_for_once(tmp_path: Path) -> None:
    builder = three_arms(tmp_path / "c")
    builder.warmup(Run(), arm="A")
    analysis = analysed(builder)
    assert "19 records: 18 accepted, 1 discarded warm-up" == audit(analysis).line
    rows = list(csv.DictReader(io.StringIO(render_csv(analysis))))
    assert 19 == len(rows)
    assert 18 == len({row["slot"] for row in rows if row["is_counted"] == "yes"})
    spent = sum(float(suite.get("time", "0")) for suite in ElementTree.fromstring(render_junit(analysis)))
    assert sum(float(row["wall_s"]) for row in rows) == pytest.approx(spent)


@pytest.mark.parametrize(
    ("changes", "words", "code"),
    [
        pytest.param({"C": {"worker_s": 12.0}}, ["FASTER", "SLOWER"], 3, id="slower"),
        pytest.param({"C": {"pictures": (2,)}}, ["FASTER", "SAME"], 4, id="other pictures"),
        pytest.param({"C": {"config": {"width": 32}}}, ["FASTER", "INVALID"], 6, id="unequal work"),
        pytest.param({"B": {"config": {"seed": 7}}}, ["INVALID", "SAME"], 6, id="unequal work of the first"),
    ],
)
def test_the_worst_comparison_decides_the_exit_code(
    tmp_path: Path, changes: dict[str, dict[str, object]], words: list[str], code: int
) -> None:
    analysis = analysed(three_arms(tmp_path / "c", changes))
    assert words == [cell.word.value for cell in analysis.cells]
    assert code == analysis.exit_code()


def test_a_timer_that_one_arm_lacks_is_judged_for_none(tmp_path: Path) -> None:
    changes = {letter: {"denoise_s": 5.0} for letter in "AB"}
    denoise = [
        metric.note
        for cell in analysed(three_arms(tmp_path / "c", changes)).cells
        for metric in cell.metrics
        if metric.name == "denoise"
    ]
    assert ["unequal timers: the candidate C did not record it in every run"] * 2 == denoise


def test_a_failed_arm_costs_the_whole_block_and_is_named(tmp_path: Path) -> None:
    builder = three_arms(tmp_path / "c", blocks=2)
    builder.plan["blocks"] = 3
    analysis = analysed(builder.block([Run(state="invalid", reason_code="OOM", reason="out of memory")], block=3))
    assert [2, 2] == [len(cell.runs.blocks) for cell in analysis.cells]
    assert 1 == len(analysis.all_runs)
    text = render_document(build_document(analysis))
    assert "**panda**: block 3 lost: candidate C OOM in panda/03-1-C: out of memory" in text


def test_the_report_names_all_arms(tmp_path: Path) -> None:
    text = render_document(build_document(analysed(three_arms(tmp_path / "c"))))
    assert "| Baseline (A) | Candidate (B) | Candidate (C) |" in text
    assert "Reduction, 97.5 % interval" in text
    assert "**1 FASTER, 1 SAME** in 2 comparisons." in text
    assert "each interval is a 97.5 % interval, so that those of one cell hold together at 95 %" in text
    assert "(ABCCBA BCAACB CABBAC)" in text
    assert "# one candidate C run, as panda/01-3-C" in text
    assert 1 == text.count("- **panda**: ")


def test_each_treatment_is_told(tmp_path: Path) -> None:
    text = treatment_text(analysed(three_arms(tmp_path / "c")))
    assert text is not None
    assert text.startswith("B against A: Arms differ only in: --fastpaths (off against auto).")
    assert "C against A: Arms differ only in: --fastpaths (off against auto); --seed (nothing against 42)." in text


def test_a_report_of_three_arms_is_the_same_twice(tmp_path: Path) -> None:
    folder = three_arms(tmp_path / "c").write()
    write_report(folder)
    first = {path.name: path.read_bytes() for path in folder.glob("report.*")}
    write_report(folder)
    assert first == {path.name: path.read_bytes() for path in folder.glob("report.*")}
    assert {"report.md", "report.html", "report.json"} <= first.keys()


def test_cells_are_read_against_their_reference_candidate_by_candidate(tmp_path: Path) -> None:
    builder = CampaignBuilder(
        tmp_path / "c",
        blocks=3,
        cells={"exact": {}, "high": {"reference": "exact"}},
        further={"ablation": "--fastpaths=auto --seed=42"},
    )
    for cell in ("exact", "high"):
        for block in range(3):
            runs = [Run(worker_s=10 * (1 + jitter)) for jitter in JITTER]
            builder.block(runs, cell=cell, block=block + 1)
    pairs = [(pair.cell, pair.reference) for pair in analysed(builder).between_cells]
    assert [("high: candidate", "exact: candidate"), ("high: ablation", "exact: ablation")] == pairs
