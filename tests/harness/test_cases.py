"""Cases from practice where no other test has them; and CASES.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.perf.abba_text import render_abba
from fuseproof.harness.report import render_markdown
from tests.harness.campaign_builder import CampaignBuilder, Run
from tests.harness.perf_dump_files import write_dump
from tests.harness.test_perf_abba import judge

TESTS = Path(__file__).resolve().parents[1]
CASES = TESTS / "CASES.md"
# The list that the page follows: its numbers have gaps.
NUMBERS = """
    1 4 6 7 9 10 11 12 13 14 15 17 18 19 20 22 23 25 26 27 28 29 30 31 32 34 35 36 37 40 41 42 44 45 47 48 50 51 53 54
    55 56 58 60 61 62 63 65 67 68 69 70 71 74 75 77 78 80 81 82 83 85 86 87 88 89 90 91 93 94 96 98 99 100 102 103 104
    105 106 108 110 111
"""


def rows() -> list[list[str]]:
    lines = CASES.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if re.match(r"\| \d", line)]


def test_every_case_has_a_row() -> None:
    assert NUMBERS.split() == [row[0] for row in rows()]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"case-{row[0]}")
def test_named_tests_exist(row: list[str]) -> None:
    _, _, state, named = row
    assert state in ("holds", "in part", "open", "elsewhere")
    tests = re.findall(r"`([\w/]+\.py)::(\w+)`", named)
    assert tests or state in ("open", "elsewhere")
    for file, name in tests:
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"


def by_arm(folder: Path, baseline: dict[str, Any], candidate: dict[str, Any]) -> Campaign:
    """Two mirrored blocks at 10 and 9 s whose runs differ by arm."""
    builder = CampaignBuilder(folder / "c")
    for index, way in enumerate(("ABBA", "BAAB")):
        runs = [
            Run(worker_s=10.0 + 0.01 * index, **baseline)
            if arm == "A"
            else Run(worker_s=9.0 + 0.01 * index, **candidate)
            for arm in way
        ]
        builder.block(runs, block=index + 1)
    return Campaign.open(builder.write())


@pytest.mark.parametrize(
    ("baseline", "candidate", "named"),
    [
        pytest.param({"config": {"num_gpus": 1}}, {"config": {"num_gpus": 2}}, "num_gpus", id="54-topology"),
        pytest.param(
            {"config": {"warmup_mode": "request"}}, {"config": {"warmup_mode": "off"}}, "warmup", id="14-warm-up"
        ),
        pytest.param({"config": {"warmup_steps": 50}}, {"config": {"warmup_steps": 1}}, "warmup_steps", id="13-depth"),
        pytest.param({}, {"config": {"enable_torch_compile": True}}, "enable_torch_compile", id="104-compile"),
        pytest.param({}, {"config": {"guidance_scale": 1.0}}, "guidance_scale", id="85-guidance"),
        pytest.param({}, {"config": {"seed": 7}}, "seed", id="100-seed"),
    ],
)
def test_unequal_measurements_have_no_ratio(
    tmp_path: Path, baseline: dict[str, Any], candidate: dict[str, Any], named: str
) -> None:
    analysis = analyse(by_arm(tmp_path, baseline, candidate))
    (cell,) = analysis.cells
    assert (6, "INVALID") == (analysis.exit_code(), str(cell.word))
    assert cell.verdict is not None and cell.verdict.comparison is None
    assert named in " ".join(reason.detail for reason in cell.verdict.reasons)
    assert "faster" not in render_markdown(analysis).partition("## Setup")[0]


def test_timers_of_one_arm_alone_are_not_compared(tmp_path: Path) -> None:
    """Case 14: the baseline states client seconds, the candidate does not."""
    (cell,) = analyse(by_arm(tmp_path, {"client_s": 10.5}, {})).cells
    client = [metric for metric in cell.metrics if metric.name == "client"]
    assert all(metric.verdict is None or metric.verdict.comparison is None for metric in client)


def test_small_effects_of_changing_sign_are_noise_and_never_averaged(tmp_path: Path) -> None:
    """Case 19: −0.99 %, +0.29 %, −0.11 % at three settings."""
    latencies = {"steps-20": -0.0099, "steps-30": 0.0029, "steps-50": -0.0011}
    builder = CampaignBuilder(tmp_path / "c", cells=tuple(latencies))
    for cell, latency in latencies.items():
        slow = 10 * (1 + latency)
        builder.blocks([(10.0, slow, slow + 0.05, 10.05), (slow - 0.04, 10.0, 9.96, slow + 0.01)], cell=cell)
    analysis = analyse(Campaign.open(builder.write()))
    assert [False] * 3 == [str(cell.word) in ("FASTER", "SLOWER") for cell in analysis.cells]
    summary = render_markdown(analysis).partition("## Setup")[0]
    assert "FASTER" not in summary
    assert all(cell in summary for cell in latencies), "each speaks for itself"


def test_a_stalled_save_never_makes_the_headline(tmp_path: Path) -> None:
    """Case 1: client seconds that say 14.04 % stand below a worker's 2.23 %, both undecided by one block."""
    client, worker = (8.47, 6.49, 6.49, 6.63), (6.287877, 6.147133, 6.145752, 6.285083)
    files = [
        write_dump(
            tmp_path / f"{slot}-{arm}.json",
            request_id=f"{slot}",
            commit_hash=arm * 40,
            total_duration_ms=1000 * worker[slot],
            timers={"client_ms": 1000 * client[slot]},
        )
        for slot, arm in enumerate("abba")
    ]
    text = render_abba(judge(files))
    headline = text.partition("### Reasons")[0]
    assert "2.23 %" in headline and "14.04" not in headline and "13.39" not in headline
    assert "post-worker gap 2.18 s against 0.34 s" in text


def test_blocks_that_were_left_out_stand_in_the_details(tmp_path: Path) -> None:
    """Case 23: the reader asked for block 3 alone."""
    rows = [(10.0, 9.5, 9.5, 10.0), (9.51, 10.01, 10.0, 9.5), (10.0, 9.5, 9.5, 10.0)]
    builder = CampaignBuilder(tmp_path / "c", blocks=3).blocks(rows)
    text = render_markdown(analyse(Campaign.open(builder.write()), [3]))
    details = text.partition("## Raw runs")[2]
    assert "All 12 runs, of which 4 count" in details
    assert [4, 4, 0] == [
        sum(line.startswith(f"| panda-r{block}") and "not counted" in line for line in details.splitlines())
        for block in (1, 2, 3)
    ]


def test_memory_has_one_unit(tmp_path: Path) -> None:
    """Case 69: a card of 143,771 MiB beside torch's peaks."""
    environment = {"gpus": [{"name": "NVIDIA H200", "memory_total_mib": 143771.0}], "memory": {"total_mib": 2**20}}
    builder = CampaignBuilder(tmp_path / "c", environment=environment)
    builder.blocks([(10.0, 9.5, 9.5, 10.0)] * 2, peak_allocated_mib=61440.0, peak_reserved_mib=71885.5)
    text = render_markdown(analyse(Campaign.open(builder.write())))
    assert "MiB" not in text and " MB" not in text
    for value in ("140.40", "60.0000", "70.2007"):
        assert value in text


@pytest.mark.parametrize(
    ("setting", "one", "two"), [("num_gpus", 1, 2), ("tp_size", 1, 2), ("enable_cfg_parallel", False, True)]
)
def test_a_declared_topology_is_compared_with_a_warning(tmp_path: Path, setting: str, one: Any, two: Any) -> None:
    """Case 54: outputs of another number of GPUs are no failure of the code, so exactness is told within an arm."""
    builder = CampaignBuilder(tmp_path / "c", candidate_flags=f"--{setting.replace('_', '-')} {two}".lower())
    for index, way in enumerate(("ABBA", "BAAB")):
        runs = {"A": Run(config={setting: one}), "B": Run(config={setting: two}, worker_s=9.0, pictures=(2,))}
        builder.block([runs[arm] for arm in way], block=index + 1)
    (cell,) = analyse(Campaign.open(builder.write())).cells
    (detail,) = [warning.detail for warning in cell.warnings if warning.code == "TOPOLOGY_DIFFERS"]
    assert setting in detail and f"{one} against {two}".lower() in detail.lower()
    assert [True, True] == [arm.is_deterministic for arm in cell.outputs.determinism]
