"""What recorded GPU telemetry says about two arms: clocks, cycles, power caps, neighbours, memory, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.analysis.campaign import CellAnalysis, analyse
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import write_report
from fuseproof.harness.statistics.verdict import Word
from tests.harness.campaign_builder import CampaignBuilder, Run
from tests.harness.fake_nvml import UUID

FASTER = ((10.0, 9.5, 9.51, 10.01), (9.5, 10.0, 10.01, 9.51))
"""B takes 5 % less time, in an ABBA and a BAAB block."""
SAME = ((10.0, 10.0, 10.01, 10.01), (10.0, 10.0, 10.01, 10.01))
OTHER_UUID = "GPU-bbbbbbbb"


def phase(clock: float | None = 1980.0, *, capped: int = 0, **more: Any) -> dict[str, Any]:
    usual = {"samples": 50, "event_samples": 50, "utilization_percent": 98.0, "busy_samples": 50}
    counts = {"SW power cap": capped} if capped else {}
    return {
        **usual,
        "sm_clock_mhz": clock,
        "busy_sm_clock_mhz": clock,
        "power_w": 650.0,
        "event_counts": counts,
        **more,
    }


def gpu(request: Mapping[str, Any] | None = None, *, name: str = "request", **more: Any) -> dict[str, Any]:
    card = {"uuid": UUID, "phases": {name: dict(request or phase())}}
    return {"cards": [card], "interval_s": 0.2, "longest_gap_s": 0.31, "cpu_share": 0.0004, **more}


def folder_of(
    directory: Path, by_arm: Callable[[str], Any], worker: Any = FASTER, run: Mapping[str, Any] | None = None
) -> Path:
    """A campaign in which every slot's ``gpu`` is ``by_arm(arm)``."""
    folder = CampaignBuilder(directory).blocks(worker, **(run or {})).write()
    for path in sorted(folder.glob("slots/*/*/result.json")):
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"gpu": by_arm(record["arm"])}))
    return folder


def judged(*args: Any, **more: Any) -> CellAnalysis:
    return analyse(Campaign.open(folder_of(*args, **more))).cells[0]


def codes(cell: CellAnalysis) -> tuple[list[str], list[str]]:
    return [reason.code for reason in cell.verdict.reasons], [warning.code for warning in cell.warnings]


def test_equal_clocks_leave_the_verdict_alone(tmp_path: Path) -> None:
    cell = judged(tmp_path, lambda arm: gpu())
    assert (Word.FASTER, ([], [])) == (cell.word, codes(cell))
    assert cell.gpu is not None and (0.0, "request", 8) == (cell.gpu.clock_difference, cell.gpu.basis, cell.gpu.runs)


def test_a_campaign_without_gpus_has_no_conditions(tmp_path: Path) -> None:
    assert None is judged(tmp_path, lambda arm: None).gpu


@pytest.mark.parametrize(
    ("clock", "word", "reasons", "warnings"),
    [
        pytest.param(1980.0 * 1.0101, Word.INCONCLUSIVE, ["CLOCK_CHANGED"], [], id="just-above-the-limit"),
        pytest.param(1980.0 * 1.0099, Word.FASTER, [], [], id="just-below"),
        pytest.param(1980.0 * 0.98, Word.FASTER, [], ["CLOCK_AGAINST_EFFECT"], id="ahead-at-a-lower-clock"),
    ],
)
def test_a_clock_that_may_be_the_effect_forbids_a_verdict(
    tmp_path: Path, clock: float, word: Word, reasons: list[str], warnings: list[str]
) -> None:
    cell = judged(tmp_path, lambda arm: gpu(phase(clock if arm == "B" else 1980.0)))
    assert (word, (reasons, warnings)) == (cell.word, codes(cell))


def test_a_lower_clock_forbids_what_it_may_explain(tmp_path: Path) -> None:
    """The candidate is slower at a lower clock; or as fast, at a clock that is not."""
    slower = [(10.0, 10.5, 10.51, 10.01), (10.5, 10.02, 10.0, 10.49)]
    same = [(10.0, 10.001, 10.0, 10.001), (10.0, 10.001, 10.0, 10.001)]
    for name, times in (("slower", slower), ("same", same)):
        cell = judged(tmp_path / name, lambda arm: gpu(phase(1900.0 if arm == "B" else 1980.0)), worker=times)
        assert (Word.INCONCLUSIVE, ["CLOCK_CHANGED"]) == (cell.word, codes(cell)[0])


def test_a_win_at_a_lower_clock_is_larger_in_cycles(tmp_path: Path) -> None:
    cell = judged(tmp_path, lambda arm: gpu(phase(1782.0 if arm == "B" else 1980.0)))
    assert "5.00 % less time is 14.50 % less cycles" in cell.warnings[0].detail


def test_the_win_of_a_higher_clock_is_named_in_cycles(tmp_path: Path) -> None:
    cell = judged(tmp_path, lambda arm: gpu(phase(2178.0 if arm == "B" else 1980.0)))
    detail = cell.verdict.reasons[0].detail
    assert "1980 → 2178 MHz (+10.00 ± 0.00 %) in the request phase, limit 1 %" in detail
    assert "5.00 % less time is 4.50 % more cycles" in detail


@pytest.mark.parametrize(
    ("baseline", "candidate", "flagged"),
    [
        pytest.param(45, 5, True, id="case-17"),
        pytest.param(45, 45, False, id="equal"),
        pytest.param(45, 40, False, id="ten-points"),
        pytest.param(10, 16, True, id="twelve-points"),
    ],
)
def test_a_power_cap_is_flagged_only_where_the_arms_differ(
    tmp_path: Path, baseline: int, candidate: int, flagged: bool
) -> None:
    cell = judged(tmp_path, lambda arm: gpu(phase(capped=baseline if arm == "A" else candidate)))
    assert (Word.FASTER, ["POWER_CAP"] if flagged else []) == (cell.word, codes(cell)[1])


def test_clocks_of_busy_samples_serve_where_nobody_tells_the_phases(tmp_path: Path) -> None:
    untagged = phase(900.0, busy_sm_clock_mhz=1980.0, busy_samples=20)
    slower = phase(1400.0, busy_sm_clock_mhz=1700.0, busy_samples=20)
    cell = judged(tmp_path, lambda arm: gpu(untagged if arm == "A" else slower, name="untagged"))
    assert cell.gpu is not None
    assert ("busy", pytest.approx(1700 / 1980 - 1)) == (cell.gpu.basis, cell.gpu.clock_difference)


def by_slot(directory: Path, values: Mapping[str, Sequence[Any]]) -> CellAnalysis:
    """A campaign whose slots' ``gpu`` are the entries of their arm, in the order they ran."""
    left = {arm: list(entries) for arm, entries in values.items()}
    return judged(directory, lambda arm: left[arm].pop(0))


def clocks(*by_run: float, **more: Any) -> list[dict[str, Any]]:
    return [gpu(phase(clock, **more)) for clock in by_run]


@pytest.mark.parametrize(
    ("candidate", "samples", "reasons", "warnings"),
    [
        pytest.param((2010, 2012, 2011, 2013), 50, ["CLOCK_CHANGED"], [], id="clear"),
        pytest.param((1700, 2300, 1720, 2310), 50, [], ["CLOCK_UNRESOLVED"], id="within-the-arms-own-scatter"),
        pytest.param((2010, 2012, 2011, 2013), 2, [], ["CLOCK_UNRESOLVED"], id="too-few-samples"),
        pytest.param((1985, 1990, 1980, 1984), 2, [], [], id="few-samples-within-the-limit"),
    ],
)
def test_a_changed_clock_needs_evidence(
    tmp_path: Path, candidate: Sequence[float], samples: int, reasons: list[str], warnings: list[str]
) -> None:
    counts = {"samples": samples, "event_samples": samples, "busy_samples": samples}
    cell = by_slot(tmp_path, {"A": clocks(1980, 1981, 1979, 1980, **counts), "B": clocks(*candidate, **counts)})
    assert (reasons, warnings) == codes(cell)
    if samples == 2 and warnings:
        assert "too few samples to judge it: a run has 2 samples, 3 are needed" in cell.warnings[0].detail


def test_the_cards_are_chosen_once_for_all_runs_of_a_cell(tmp_path: Path) -> None:
    """A card that works in one slot only has an idle clock in the others, whichever slot looks at it."""
    idle = phase(345.0, utilization_percent=0.0, busy_samples=0, memory_used_peak_mib=4.0)
    woken = phase(345.0, utilization_percent=9.0, busy_samples=0, memory_used_peak_mib=900.0)

    def beside(other: Mapping[str, Any]) -> dict[str, Any]:
        values = gpu(phase(memory_used_peak_mib=40_000.0))
        return values | {"cards": [*values["cards"], {"uuid": OTHER_UUID, "phases": {"request": dict(other)}}]}

    cell = by_slot(tmp_path, {"A": [beside(idle)] * 4, "B": [beside(woken), *[beside(idle)] * 3]})
    assert cell.gpu is not None
    assert ((UUID,), 0.0, Word.FASTER) == (cell.gpu.cards, cell.gpu.clock_difference, cell.word)
    assert "device used sum" not in {row.kind for row in cell.memory.rows}


def other_card(**more: Any) -> dict[str, Any]:
    return gpu(**more) | {"cards": [{"uuid": OTHER_UUID, "phases": {"request": phase(1500.0)}}]}


@pytest.mark.parametrize("env", [{}, {"CUDA_VISIBLE_DEVICES": "1"}], ids=["undeclared", "declared"])
def test_arms_on_different_cards_are_unequal_work_unless_declared(tmp_path: Path, env: dict[str, str]) -> None:
    folder = folder_of(tmp_path, lambda arm: gpu() if arm == "A" else other_card())
    campaign = json.loads((folder / "campaign.json").read_text())
    campaign["plan"]["arms"]["candidate"]["env"] = env
    (folder / "campaign.json").write_text(json.dumps(campaign))
    (cell,) = analyse(Campaign.open(folder)).cells
    assert cell.gpu is not None and cell.gpu.clock_difference is None
    text = f"GPUs: {UUID} against {OTHER_UUID} in block 1"
    if env:
        assert (Word.FASTER, (text,)) == (cell.word, cell.equal_work.declared)
        assert ["CARDS_DIFFER"] == codes(cell)[1]
    else:
        assert (Word.INVALID, (text,)) == (cell.word, cell.equal_work.differences)


def test_samples_of_all_phases_weigh_the_same_where_nobody_tells_the_phases(tmp_path: Path) -> None:
    """A hundred samples at 700 W and one of a card at rest are not 400 W on average."""
    card = {
        "uuid": UUID,
        "phases": {
            "warm-up": phase(samples=1, busy_samples=1, power_w=100.0, event_samples=1),
            "untagged": phase(samples=99, busy_samples=99, power_w=700.0, event_samples=99),
        },
    }
    cell = judged(tmp_path, lambda arm: gpu() | {"cards": [card]})
    assert cell.gpu is not None
    assert ("busy", pytest.approx(694.0)) == (cell.gpu.basis, cell.gpu.arms[0].power_w)


def test_any_event_reason_is_compared_between_the_arms(tmp_path: Path) -> None:
    cell = judged(tmp_path, lambda arm: gpu(phase(event_counts={"sync boost": 50} if arm == "B" else {"idle": 50})))
    assert ["CLOCK_EVENTS"] == codes(cell)[1]


def test_a_sampler_that_cost_too_much_is_said(tmp_path: Path) -> None:
    cell = judged(tmp_path, lambda arm: gpu(cpu_share=0.006))
    assert ["SAMPLER_COST"] == codes(cell)[1]
    assert "up to 0.60 % of the cores' time in a slot, more than 0.5 %" in cell.warnings[0].detail


def test_an_idle_card_beside_the_working_one_does_not_count(tmp_path: Path) -> None:
    idle = {"uuid": OTHER_UUID, "phases": {"request": phase(345.0, utilization_percent=0.0, busy_samples=0)}}

    def both(arm: str) -> dict[str, Any]:
        values = gpu()
        return values | {"cards": [*values["cards"], idle] if arm == "B" else values["cards"]}

    cell = judged(tmp_path, both)
    assert cell.gpu is not None and 0.0 == cell.gpu.clock_difference


def test_a_run_without_samples_is_counted_and_no_clock_is_compared(tmp_path: Path) -> None:
    silent = {"cards": [], "reason": "NVML could not be started: Driver Not Loaded"}
    folder = folder_of(tmp_path, lambda arm: gpu() if arm == "A" else silent)
    cell = write_report(folder).cells[0]
    assert cell.gpu is not None
    assert (None, 4, Word.FASTER) == (cell.gpu.clock_difference, cell.gpu.runs_without_samples, cell.word)
    text = (folder / "report.md").read_text()
    assert "In 4 of 8 runs nobody knows how the GPUs ran: NVML could not be started: Driver Not Loaded." in text
    assert "clocks were not compared" in text


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        pytest.param({"foreign": [f"process 77 on {UUID}"]}, "process 77", id="neighbour"),
        pytest.param({"used_mib": {UUID: 9630.0}, "baseline_mib": {UUID: 4.0}}, "9.40 GiB more in use", id="leftover"),
    ],
)
def test_others_on_the_gpus_forbid_a_verdict(tmp_path: Path, rest: dict[str, Any], told: str) -> None:
    at_rest = {"waited_s": 30.0, "is_at_rest": False, **rest}
    cell = judged(tmp_path, lambda arm: gpu(at_rest=at_rest if arm == "B" else {"waited_s": 0.1, "is_at_rest": True}))
    assert (Word.INCONCLUSIVE, "CONTENTION") == (cell.word, cell.verdict.reasons[0].code)
    assert "after 4 of 8 runs" in cell.verdict.reasons[0].detail and told in cell.verdict.reasons[0].detail


def test_a_card_that_is_shared_by_service_or_division_is_said(tmp_path: Path) -> None:
    rest = {"waited_s": 0.1, "is_at_rest": True, "mps": [f"MPS server 77 on {UUID}"]}
    folder = folder_of(tmp_path, lambda arm: gpu(at_rest=rest))
    campaign = json.loads((folder / "campaign.json").read_text())
    campaign["environment"]["gpus"] = [
        {"uuid": UUID, "mig_mode": "Enabled"},
        {"uuid": OTHER_UUID, "mig_mode": "Enabled"},
    ]
    (folder / "campaign.json").write_text(json.dumps(campaign))
    (cell,) = analyse(Campaign.open(folder)).cells
    assert (Word.FASTER, ["MIG_PARENT", "MPS_SERVER"]) == (cell.word, codes(cell)[1])
    assert cell.warnings[0].detail.startswith(f"{UUID} is divided by MIG")


def test_the_report_says_how_closely_the_gpus_were_looked_at(tmp_path: Path) -> None:
    rest = {"waited_s": 1.5, "is_at_rest": True}
    folder = folder_of(tmp_path, lambda arm: gpu(phase(capped=5, temperature_c=61.0), at_rest=rest))
    write_report(folder)
    text = (folder / "report.md").read_text()
    section = text.split("## Telemetry")[1].split("\n## ")[0]
    assert (
        "sampled every 0.20 s (median, longest gap 0.31 s) by a side process, at a measured cost of at most 0.040 % of "
        "the cores' time in a slot (limit 0.5 %)" in section
    )
    assert "cannot be excluded" in section
    assert "waited for: 12.0 s in all, at most 1.5 s after a slot" in section
    assert "| panda | baseline | 1980 |" in section and "SW power cap 10 %" in section


def test_the_html_draws_the_samples_of_a_slot(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, lambda arm: gpu())
    lines = [
        {"t_s": 0.2 * step, "gpu": UUID, "phase": "request" if step > 3 else "load", "sm_clock_mhz": 1900 + step}
        for step in range(8)
    ]
    slot = folder / "slots" / "panda" / "01-1-A" / "telemetry.jsonl"
    slot.write_text("".join(json.dumps(line) + "\n" for line in lines) + "[broken\n")
    write_report(folder)
    html = (folder / "report.html").read_text()
    assert 1 == html.count('<polyline class="trace"')
    assert 'points="72.0,46.0 ' in html and "1907 MHz" in html and 'class="request"' in html
    assert "polyline" not in (folder / "report.md").read_text()


def test_device_used_memory_is_a_row_of_its_own(tmp_path: Path) -> None:
    def both(arm: str) -> dict[str, Any]:
        values = gpu(phase(memory_used_peak_mib=40 * 1024.0))
        other = {"uuid": OTHER_UUID, "phases": {"request": phase(memory_used_peak_mib=10 * 1024.0)}}
        return values | {"cards": [*values["cards"], other]}

    run = {"peak_allocated_mib": 30_000.0, "peak_reserved_mib": 35_000.0}
    cell = judged(tmp_path, both, run=run)
    rows = {row.kind: row.baseline_mib / 1024 for row in cell.memory.rows}
    assert (40.0, 50.0) == (rows["device used"], rows["device used sum"])
    assert "device" not in cell.memory.sentence, "a claim rests on torch's numbers alone"


def test_a_slot_that_braked_is_out_as_a_whole_block(tmp_path: Path) -> None:
    braked = Run(state="invalid", reason_code="HW_SLOWDOWN", reason="HW thermal slowdown in 3 of 50 samples")
    builder = CampaignBuilder(tmp_path, status="failed")
    builder.block([Run(worker_s=seconds) for seconds in FASTER[0]])
    builder.block([Run(worker_s=9.5), braked], block=2)
    analysis = analyse(Campaign.open(builder.write()))
    (lost,) = analysis.cells[0].runs.lost
    assert (2, True, 6) == (lost.number, lost.is_void, analysis.exit_code())
