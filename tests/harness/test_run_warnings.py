"""What runs state of how they were measured: a cold first batch, saving or compiling inside the time, determinism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.analysis.campaign import CellAnalysis, analyse
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.perf.batches import cold_first_batch
from fuseproof.harness.perf.comparison import compare_dumps
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.harness.perf.saving import saving_stages_ms
from fuseproof.harness.perf.text import render_comparison
from fuseproof.harness.report import render_markdown
from fuseproof.harness.statistics.verdict import Word
from tests.harness.campaign_builder import Run
from tests.harness.perf_dump_files import KLEIN, stage_list, write_block, write_dump
from tests.harness.test_equal_work import TIMES, arm_with, campaign, campaign_builder
from tests.harness.test_perf_abba import judge

COLD = "so the first measured batch is cold"


def warned(cell: CellAnalysis, code: str) -> list[str]:
    return [warning.detail for warning in cell.warnings if warning.code == code]


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        pytest.param({"batch_size": 4, "warmup_requests": 2}, "batch_size is 4 and the warm-up is 2", id="case-15"),
        pytest.param({"batch_size": 4, "warmup": 2}, "batch_size is 4 and the warm-up is 2", id="a-number"),
        pytest.param({"max_concurrency": "8", "num_warmups": "1"}, "max_concurrency is 8", id="words-of-a-command"),
        pytest.param({"batching_max_size": 4, "warmup_mode": "request"}, "the warm-up is 1 request", id="sglang"),
        pytest.param({"batch_size": 4, "warmup_mode": "off"}, "the warm-up is 0 request", id="no-warm-up"),
        pytest.param({"batch_size": 2, "warmup": True}, "the warm-up is 1 request", id="warm-up-on"),
        pytest.param({"batch_size": 4, "warmup_requests": 4}, None, id="as-large"),
        pytest.param({"batch_size": 2, "warmup": True, "warmup_resolutions": ["64x64", "96x64"]}, None, id="two-sizes"),
        pytest.param({"batch_size": 1, "warmup_mode": "off"}, None, id="one-at-a-time"),
        pytest.param({"batch_size": 4}, None, id="no-warm-up-stated"),
        pytest.param({"warmup_requests": 2}, None, id="no-batch-stated"),
        pytest.param({"batch_size": "large", "warmup_requests": 2}, None, id="no-number"),
    ],
)
def test_a_warm_up_smaller_than_the_batch_leaves_the_first_one_cold(
    stated: dict[str, Any], expected: str | None
) -> None:
    told = cold_first_batch(stated)
    assert (expected is None) == (told is None)
    if told is not None and expected is not None:
        assert expected in told and COLD in told


def test_a_cold_first_batch_is_a_warning_of_a_campaign_for_dumps_of_both_kinds(tmp_path: Path) -> None:
    stated = {"config": {"batch_size": 4, "warmup_requests": 2}}
    analysis = campaign(tmp_path / "ours", stated, stated)
    (cell,) = analysis.cells
    both = "4 of 4 baseline runs and 4 of 4 candidate runs: batch_size is 4 and the warm-up is 2 request(s), "
    assert [both + COLD] == warned(cell, "COLD_BATCH")
    assert COLD in render_markdown(analysis).partition("## Setup")[0]
    command = {"schema": None, "flags": ("--max-concurrency", "4", "--warmup-requests=2")}
    (foreign,) = campaign(tmp_path / "foreign", command, command).cells
    assert COLD in warned(foreign, "COLD_BATCH")[0]
    (warm,) = campaign(tmp_path / "warm", {}, {}).cells
    assert [] == warned(warm, "COLD_BATCH")


def test_compare_perf_says_that_the_first_batch_is_cold(tmp_path: Path) -> None:
    config = {"config": {"batch_size": 4}, "warmup": 2}
    paths = [write_dump(tmp_path / f"{name}.json", request_id=name, **config) for name in "ab"]
    comparison = compare_dumps([read_perf_dump(path) for path in paths])
    assert [f"{name}.json" for name in "ab"] == [text.partition(":")[0] for text in comparison.warnings if COLD in text]
    files = write_block(tmp_path / "block", (10.0, 9.0, 9.0, 10.0), both=config)
    assert [True] == [COLD in warning.detail for warning in judge(files).warnings if warning.code == "COLD_BATCH"]


@pytest.mark.parametrize(
    ("batch", "is_equal"), [pytest.param(1, True, id="alike"), pytest.param(4, False, id="batch-1-and-4")]
)
@pytest.mark.parametrize("key", ["batch_size", "num_outputs_per_prompt", "num_images_per_prompt"])
def test_outputs_of_another_batch_size_are_not_compared(tmp_path: Path, key: str, batch: int, is_equal: bool) -> None:
    analysis = campaign(
        tmp_path, {"config": {key: 1}}, {"config": {key: batch}}, candidate_flags=f"--{key.replace('_', '-')} {batch}"
    )
    assert is_equal == analysis.cells[0].equal_work.is_equal
    assert ("×" in render_markdown(analysis)) == is_equal


SAVING_NAMES = {
    "SavingStage": True,
    "SaveVideoStage": True,
    "save_png": True,
    "OutputEncodingStage": True,
    "ExportVideoStage": True,
    "mp4_encode": True,
    "TextEncodingStage": False,
    "ImageEncodingStage": False,
    "ImageVAEEncodingStage": False,
    "VideoVAEEncodingStage": False,
    "MemorySaverStage": False,
    "DecodingStage": False,
    "Scheduler.return_result.spill_arrays": False,
}


@pytest.mark.parametrize(("stage", "expected"), SAVING_NAMES.items(), ids=SAVING_NAMES.keys())
def test_which_stages_save(tmp_path: Path, stage: str, expected: bool) -> None:
    dump = read_perf_dump(write_dump(tmp_path / "p.json", steps=stage_list((stage, 3.0))))
    assert ({stage: 3.0} if expected else {}) == saving_stages_ms(dump)


def test_real_dumps_of_sglang_save_outside_their_total() -> None:
    assert [{}] * len(KLEIN) == [saving_stages_ms(read_perf_dump(path)) for path in KLEIN]


def test_saving_inside_the_total_is_a_row_of_its_own_and_named(tmp_path: Path) -> None:
    steps = stage_list(("DenoisingStage", 900.0), ("SaveVideoStage", 60.0), ("SaveVideoStage", 20.0))
    paths = [write_dump(tmp_path / f"{name}.json", request_id=name, steps=steps) for name in "ab"]
    comparison = compare_dumps([read_perf_dump(path) for path in paths])
    assert [80.0] == [row.baseline_ms for row in comparison.times if row.name == "Saving inside the worker"]
    assert "a.json: the worker's time contains saving: SaveVideoStage." in comparison.warnings
    assert "| Saving inside the worker" in render_comparison(comparison)
    stages = {"stages": ("DenoisingStage", "SaveVideoStage")}
    (cell,) = campaign(tmp_path / "campaign", stages, stages).cells
    (detail,) = warned(cell, "SAVE_INSIDE")
    assert detail.endswith("the worker's time contains saving: SaveVideoStage")


def test_a_save_outside_the_total_is_a_row_and_no_warning(tmp_path: Path) -> None:
    timers = {"worker_ms": 1000.0, "save_ms": 80.0, "client_ms": 1100.0}
    paths = [write_dump(tmp_path / f"{name}.json", request_id=name, timers=timers) for name in "ab"]
    comparison = compare_dumps([read_perf_dump(path) for path in paths])
    rows = {row.name: (row.baseline_ms, row.note) for row in comparison.times}
    assert ((80.0, ""), (1100.0, "saving included")) == (rows["Save"], rows["Client E2E"])
    assert "Saving inside the worker" not in rows and [] == [text for text in comparison.warnings if "saving" in text]


def test_totals_of_which_one_contains_saving_are_not_compared(tmp_path: Path) -> None:
    """It would read as a speed-up that a candidate no longer saves inside its own time."""
    baseline = {"stages": ("DenoisingStage", "SavingStage")}
    (cell,) = campaign(tmp_path, baseline, {}).cells
    assert (Word.INVALID, ("saving inside the worker's time: true against false",)) == (
        cell.word,
        cell.equal_work.differences,
    )


RECOMPILED = (
    "V0101 12:00:00 torch/_dynamo/guards.py:3 [0/1] [__recompiles] Recompiling function forward in block.py:7\n"
)
OWN_WORDS = "torch.compile compiled inside a timed request: its time includes compilation"


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        pytest.param({"warnings": (OWN_WORDS,)}, "4 of 4 candidate runs warn: torch.compile compiled ins", id="dump"),
        pytest.param({"schema": None, "stdout": RECOMPILED}, "4 of 4 candidate runs: their logs show", id="log"),
        pytest.param({"stdout": RECOMPILED}, None, id="our-own-log-is-not-read-for-it"),
        pytest.param({"schema": None, "stdout": "compiled block.py"}, None, id="nothing-said"),
    ],
)
def test_a_run_that_compiled_inside_its_time_is_flagged(
    tmp_path: Path, candidate: dict[str, Any], expected: str | None
) -> None:
    analysis = campaign(tmp_path, {}, candidate)
    (cell,) = analysis.cells
    found = warned(cell, "COMPILE_INSIDE")
    assert ([] if expected is None else [expected]) == [detail[: len(expected or "")] for detail in found]
    assert (expected is not None) == ("COMPILE_INSIDE" in render_markdown(analysis).partition("## Setup")[0])


def recorded(**variables: str) -> dict[str, Any]:
    return {"environment": {"environment_variables": variables}}


SETTINGS = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVIDIA_TF32_OVERRIDE": "0",
    "PYTHONHASHSEED": "0",
    "SGLANG_ENABLE_DETERMINISTIC_INFERENCE": "1",
}


@pytest.mark.parametrize(("name", "value"), SETTINGS.items(), ids=SETTINGS.keys())
@pytest.mark.parametrize("schema", ["fuseproof.perf/1", None], ids=["ours", "foreign"])
def test_a_determinism_setting_of_one_arm_only_is_unequal_work_unless_declared(
    tmp_path: Path, schema: str | None, name: str, value: str
) -> None:
    arms = ({**recorded(), "schema": schema}, {**recorded(**{name: value}), "schema": schema})
    said = f"{name}: not set against {value}"
    analysis = campaign(tmp_path / "undeclared", *arms)
    assert (6, (said,)) == (analysis.exit_code(), analysis.cells[0].equal_work.differences)
    other_program = arm_with(tmp_path / "program", *arms, python="/opt/other/bin/python")
    assert (said,) == other_program.equal_work.differences, "another program is no licence for another setting"
    declared = arm_with(tmp_path / "declared", *arms, env={name: value})
    assert ((), (said,)) == (declared.equal_work.differences, declared.equal_work.declared)


@pytest.mark.parametrize("switch", ["deterministic_algorithms", "cudnn_deterministic", "cudnn_benchmark"])
def test_switches_of_torch_are_compared(tmp_path: Path, switch: str) -> None:
    arms = [{"schema": None, "environment": {switch: value}} for value in (False, True)]
    assert (f"{switch}: false against true",) == campaign(tmp_path, *arms).cells[0].equal_work.differences


def test_equal_determinism_settings_are_equal_work(tmp_path: Path) -> None:
    arm = {**recorded(**SETTINGS), "variables": SETTINGS}
    (cell,) = campaign(tmp_path, arm, arm).cells
    assert (Word.FASTER, (), []) == (cell.word, cell.equal_work.differences, warned(cell, "DETERMINISM_DIFFERS"))


def test_a_setting_that_only_one_dump_records_was_not_checked(tmp_path: Path) -> None:
    setting = recorded(CUBLAS_WORKSPACE_CONFIG=":4096:8")
    (cell,) = campaign(tmp_path, {"environment": {}}, setting).cells
    assert (
        "CUBLAS WORKSPACE CONFIG" in cell.equal_work.unchecked or "CUBLAS_WORKSPACE_CONFIG" in cell.equal_work.unchecked
    )


def test_arms_that_were_given_other_determinism_settings_are_warned_about(tmp_path: Path) -> None:
    """Dumps of foreign programs record no variables: what the slots were started with tells."""
    builder = campaign_builder(
        tmp_path, {"schema": None}, {"schema": None, "variables": {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}}
    )
    builder.plan["arms"]["candidate"]["env"] = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    analysis = analyse(Campaign.open(builder.write()))
    told = ["the arms' determinism settings differ: CUBLAS_WORKSPACE_CONFIG: not set against :16:8"]
    assert told == warned(analysis.cells[0], "DETERMINISM_DIFFERS")
    assert "DETERMINISM_DIFFERS" in render_markdown(analysis)


def test_the_runs_here_are_clean_without_these_settings(tmp_path: Path) -> None:
    (cell,) = campaign(tmp_path, {}, {}).cells
    assert (Word.FASTER, ()) == (cell.word, cell.warnings)
    assert TIMES["A"] == Run().worker_s
