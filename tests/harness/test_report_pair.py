"""``fuseproof report DIR DIR2``: two campaigns side by side, nothing pooled, nothing hidden, nothing written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fuseproof.cli.main import main
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.report import pair_lines, read_pair, render_pair, write_report
from fuseproof.harness.report.side_by_side import CampaignPair
from tests.harness.campaign_builder import CampaignBuilder, Run
from tests.harness.test_report import table_rows

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
SLOWER = ((9.5, 10.0, 10.02, 9.51), (10.01, 9.52, 9.5, 10.03))
SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"


def machine(model: str = "Some CPU", torch: str = "2.13.0") -> dict[str, Any]:
    return {"processor": {"model": model}, "libraries": {"torch": torch}, "load_average": [1.0, 2.0, 3.0]}


def campaign(
    folder: Path, times: Any = FASTER, *, commit: str = "c" * 40, environment: Any = None, **plan: Any
) -> Path:
    builder = CampaignBuilder(folder, environment=environment or machine(), **plan)
    for cell in builder.plan["cells"]:
        builder.blocks(times, cell=cell["name"], commit=commit)
    return builder.write()


def unequal(folder: Path) -> Path:
    """A campaign whose arms did different work: INVALID."""
    builder = CampaignBuilder(folder)
    for number, (way, row) in enumerate(zip(("ABBA", "BAAB"), FASTER, strict=True), start=1):
        runs = [Run(worker_s=s, config={"seed": 42 if arm == "A" else 43}) for arm, s in zip(way, row, strict=True)]
        builder.block(runs, block=number)
    return builder.write()


def subjects(pair: CampaignPair) -> list[tuple[str, str, str, str]]:
    return [(found.subject, found.name, found.first, found.second) for found in pair.differences]


def test_both_words_and_intervals_stand_in_the_table(tmp_path: Path) -> None:
    pair = read_pair(campaign(tmp_path / "a"), campaign(tmp_path / "b", SLOWER))
    rows = [row for row in table_rows(render_pair(pair)) if row[1] in ("first", "second")]
    expected = [
        ["**panda**", "first", "Worker E2E", "5.07 %", "[4.84, 5.30] (95 %)", "2 blocks (df 3)", "**FASTER**"],
        ["", "second", "Worker E2E", "−5.34 %", "[−5.59, −5.09] (95 %)", "2 blocks (df 3)", "**SLOWER**"],
    ]
    assert expected[0] == rows[0][:-1]
    assert [expected[1][index] for index in (0, 1, 2, 3, 6)] == [rows[1][index] for index in (0, 1, 2, 3, 6)]
    lines = pair_lines(pair)
    assert any(line.startswith("  first: FASTER: Worker E2E −5.07 % latency") for line in lines)
    assert any(line.startswith("  second: SLOWER: Worker E2E +5.34 % latency") for line in lines)


@pytest.mark.parametrize(
    ("expected", "second"),
    [
        pytest.param(
            ("machine", "processor / model", "Some CPU", "Other"), {"environment": machine("Other")}, id="cpu"
        ),
        pytest.param(
            ("versions", "libraries / torch", "2.13.0", "2.14.0"), {"environment": machine(torch="2.14.0")}, id="torch"
        ),
        pytest.param(("commit", "baseline", "c" * 40, "d" * 40), {"commit": "d" * 40}, id="commit"),
        pytest.param(("plan", "primary", "worker", "denoise"), {"primary": "denoise"}, id="primary timer"),
        pytest.param(
            ("plan", "arms / candidate / flags", "--fastpaths=auto", "--fastpaths=all"),
            {"candidate_flags": "--fastpaths=all"},
            id="flags",
        ),
    ],
)
def test_what_differs_is_named_with_both_values(
    tmp_path: Path, expected: tuple[str, ...], second: dict[str, Any]
) -> None:
    pair = read_pair(campaign(tmp_path / "a"), campaign(tmp_path / "b", **second))
    assert expected in subjects(pair)
    assert f"Not pooled: different {expected[0]}." == pair.not_pooled
    for text in (render_pair(pair), "\n".join(pair_lines(pair))):
        assert pair.not_pooled in text
        assert expected[2] in text and expected[3] in text


def test_equal_setups_are_not_pooled_either(tmp_path: Path) -> None:
    moment = {"load_average": [9.0, 9.0, 9.0], "timer_tick_s": 8e-8, "memory": {"total_mib": 9, "available_mib": 7}}
    other = {"load_average": [1.0, 2.0, 3.0], "timer_tick_s": 6e-8, "memory": {"total_mib": 9, "available_mib": 8}}
    cards: list[dict[str, Any]] = [
        {"uuid": "GPU-1", "memory_used_mib": used, "temperature_c": used, "utilization_percent": used}
        | {"performance_state": f"P{used}", "pcie_width": used}
        for used in (4, 8)
    ]
    second = campaign(tmp_path / "b", environment=machine() | moment | {"gpus": cards[:1]})
    pair = read_pair(campaign(tmp_path / "a", environment=machine() | other | {"gpus": cards[1:]}), second)
    assert [] == subjects(pair), "what was measured at one moment differs between any two sessions"
    assert pair.not_pooled.startswith("Not pooled: two campaigns are two measurements")
    assert {2} == {len(cell.runs.blocks) for _, side in pair.sides for cell in side.cells}


def test_unrecorded_commits_are_not_called_equal(tmp_path: Path) -> None:
    pair = read_pair(campaign(tmp_path / "a", commit="N/A"), campaign(tmp_path / "b", commit="N/A"))
    sentence = "neither campaign recorded a commit of the baseline or the candidate"
    assert sentence in render_pair(pair)
    assert f"note: {sentence}" in pair_lines(pair)


def test_a_workload_of_one_campaign_alone_is_shown_as_that(tmp_path: Path) -> None:
    first = campaign(tmp_path / "a", cells=("panda", "old"))
    pair = read_pair(first, campaign(tmp_path / "b", cells=("panda", "new")))
    assert ["panda", "old", "new"] == pair.cell_names
    assert 2 == sum(line.endswith("not in this campaign") for line in pair_lines(pair))
    assert 2 == sum("not in this campaign" in row for row in table_rows(render_pair(pair)))
    assert [] == subjects(pair), "the cells that both have are planned alike"


def test_long_values_that_differ_late_are_told_apart(tmp_path: Path) -> None:
    flags = [f"--prompt '{'word ' * 60}{end}'" for end in ("a", "b")]
    folders = [campaign(tmp_path / text[-2], candidate_flags=text) for text in flags]
    ((_, _, first, second),) = subjects(read_pair(*folders))
    assert first != second
    assert "(sha256 " in first


def test_private_and_hostile_text_stays_out(tmp_path: Path) -> None:
    environment = machine(f"<script>alert(1)</script> | {SECRET} \x1b[31m /home/anna/x")
    pair = read_pair(campaign(tmp_path / "a"), campaign(tmp_path / "b", environment=environment))
    text = render_pair(pair)
    assert {len(row) for row in table_rows(text)} == {4, 8}, "a | adds no column"
    for shown in (text, "\n".join(pair_lines(pair))):
        assert not any(private in shown for private in (SECRET, "anna", str(tmp_path)))
    assert "<script>" not in text and "\x1b" not in text


@pytest.mark.parametrize(
    ("expected", "is_second_invalid"), [pytest.param(0, False, id="slower"), pytest.param(6, True, id="invalid")]
)
def test_exit_code_and_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], expected: int, is_second_invalid: bool
) -> None:
    second = unequal(tmp_path / "b") if is_second_invalid else campaign(tmp_path / "b", SLOWER)
    folders = [str(campaign(tmp_path / "a")), str(second)]
    for arguments in ([], ["--format", "markdown"]):
        assert expected == main(["report", *folders, *arguments])
        first = capsys.readouterr().out
        assert "Not pooled:" in first and "\x1b" not in first
        assert expected == main(["report", *folders, *arguments])
        assert first == capsys.readouterr().out
    assert not list(tmp_path.rglob("report.*")) and not list(tmp_path.rglob("SHA256SUMS"))


@pytest.mark.parametrize(
    ("sentence", "arguments"),
    [
        pytest.param("--format csv speaks of one campaign", ["--format", "csv"], id="csv"),
        pytest.param("--format json speaks of one campaign", ["--json"], id="json"),
        pytest.param("speak of one campaign", ["--check"], id="check"),
        pytest.param("speak of one campaign", ["--block", "1"], id="block"),
        pytest.param("speak of one campaign", ["--head", "HEAD"], id="head"),
        pytest.param("speak of one campaign", ["--plan-for", "1%"], id="plan"),
    ],
)
def test_what_speaks_of_one_campaign_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sentence: str, arguments: list[str]
) -> None:
    assert 2 == main(["report", str(campaign(tmp_path / "a")), str(campaign(tmp_path / "b")), *arguments])
    captured = capsys.readouterr()
    assert "" == captured.out
    assert sentence in captured.err


def test_one_folder_twice_is_refused(tmp_path: Path) -> None:
    folder = campaign(tmp_path / "a")
    with pytest.raises(UsageError, match="are the same folder"):
        read_pair(folder, folder / ".." / "a")


def test_changed_measurements_are_not_shown(tmp_path: Path) -> None:
    first, second = campaign(tmp_path / "a"), campaign(tmp_path / "b")
    write_report(second)
    (second / "slots/panda/01-1-A/stdout.log").write_text("later", encoding="utf-8")
    with pytest.raises(FuseproofError, match=r"slots/panda/01-1-A/stdout\.log is not the file that it lists"):
        read_pair(first, second)


def test_a_copy_is_no_second_measurement(tmp_path: Path) -> None:
    pair = read_pair(campaign(tmp_path / "a"), shutil.copytree(campaign(tmp_path / "b"), tmp_path / "c"))
    told = "Both folders hold the same campaign: 8 perf dumps of 8 and 8 are equal, byte for byte."
    assert told == pair.same_runs
    assert told in pair_lines(pair) and told in render_pair(pair)
