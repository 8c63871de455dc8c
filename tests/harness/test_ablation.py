"""Ablations in folders: effects, sums against the whole, why not, what did not run, predictions, and verification."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from fuseproof.cli.main import main
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.analysis.ablation import ablations_of
from fuseproof.harness.analysis.ablation_effects import CellAblation, UnitEffects
from fuseproof.harness.analysis.ablation_sentences import note_texts, prediction_texts, sum_texts
from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.analysis.editions import TIME_SAVED, WARM_UP_AND_FIGURES
from fuseproof.harness.analysis.sentences import verdict_line
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.kept_bench import KEPT_BENCH, keep_bench, read_bench
from fuseproof.harness.number_format import interval
from fuseproof.harness.report import write_report
from fuseproof.harness.report.figure_files import NO_FIGURES
from fuseproof.harness.report.layout import MAIN_LIMIT_BYTES, main_part
from fuseproof.harness.report.markdown import render_markdown
from fuseproof.harness.report.write import render_files
from fuseproof.harness.verification.verify import verify_campaign
from fuseproof.schedules.ablation import Units
from tests.harness.ablation_builder import CALLS, UNITS, ablation_campaign, additive, sites
from tests.harness.campaign_builder import CampaignBuilder


def ablation(builder: CampaignBuilder) -> CellAblation:
    (cell,) = ablations_of(analyse(Campaign.open(builder.write())))
    return cell


def unit(cell: CellAblation, name: str) -> UnitEffects:
    return next(one for one in cell.units if one.unit == name)


def overlapping(units: Units) -> float:
    """`norm` and `vae` save 0.2 s of what each of them saves only once."""
    return additive(units) + 0.2 * ({"norm", "vae"} <= units)


def together(units: Units) -> float:
    """All three save 0.3 s more than by themselves."""
    return additive(units) - 0.3 * (len(units) == len(UNITS))


def test_effects_that_add_up(tmp_path: Path) -> None:
    cell = ablation(ablation_campaign(tmp_path / "c"))
    assert 1.75 == pytest.approx(cell.whole.seconds if cell.whole else 0, abs=0.01)
    for name, saved in (("blocks", 1.0), ("norm", 0.5), ("vae", 0.25)):
        one = unit(cell, name)
        assert one.alone is not None
        assert one.alone.interval_s[0] < saved < one.alone.interval_s[1]
        assert saved / 10 == pytest.approx(one.alone.share, rel=0.05)
    assert ["the whole"] * 2 == [total.finding for total in (cell.alone, cell.left_out) if total]
    assert ["they add up to it" in text for text in sum_texts(cell)[:2]] == [True, True]
    assert "No unit is worth anything else in company" in sum_texts(cell)[2]


def test_what_a_unit_needs_stands_in_both_arms_and_goes_with_it(tmp_path: Path) -> None:
    """`norm` alone is held against `blocks`, not against nothing; `blocks` left out takes `norm` along."""
    cell = ablation(ablation_campaign(tmp_path / "c"))
    norm, blocks = unit(cell, "norm"), unit(cell, "blocks")
    assert ("blocks",) == norm.needs
    assert ("norm",) == blocks.takes_along
    assert norm.alone is not None and 0.5 == pytest.approx(norm.alone.seconds, abs=0.02)
    assert blocks.left_out is not None and 1.5 == pytest.approx(blocks.left_out.seconds, abs=0.02)
    assert cell.left_out is not None and 1.75 == pytest.approx(cell.left_out.sum.seconds, abs=0.02)


@pytest.mark.parametrize(
    ("level", "alone_s", "left_out_s", "why"),
    [
        pytest.param(overlapping, 0.2, -0.2, "fast paths overlap", id="overlap"),
        pytest.param(together, -0.3, 0.3, "worth more together", id="together"),
    ],
)
def test_effects_that_do_not_add_up_say_why(
    tmp_path: Path, level: Any, alone_s: float, left_out_s: float, why: str
) -> None:
    cell = ablation(ablation_campaign(tmp_path / "c", level=level))
    assert cell.alone is not None and cell.left_out is not None
    assert "not the whole" == cell.alone.finding == cell.left_out.finding
    assert alone_s == pytest.approx(cell.alone.difference.seconds, abs=0.02)
    assert left_out_s == pytest.approx(cell.left_out.difference.seconds, abs=0.02)
    texts = sum_texts(cell)
    assert 1 == sum(why in text for text in texts)
    assert any(text.startswith("Largest interactions: ") and "vae" in text for text in texts)


def test_a_sum_that_could_be_anything_is_not_called_the_whole(tmp_path: Path) -> None:
    """A machine that scatters by a fifth, and others on it: nothing adds up, and nothing is said to."""
    busy = lambda name, own: {"is_busy": True}  # noqa: E731
    cell = ablation(ablation_campaign(tmp_path / "c", jitter=0.2, changes=busy))
    assert ["unknown"] * 2 == [total.finding for total in (cell.alone, cell.left_out) if total]
    assert 2 == sum("these runs cannot tell whether they add up" in text for text in sum_texts(cell))
    assert any(text.startswith("CONTENTION: ") for text in note_texts(cell))
    assert any("too much for a sum of this whole" in text for text in note_texts(cell))


@pytest.mark.parametrize("by", ["alone", "without"])
def test_one_way_only(tmp_path: Path, by: Any) -> None:
    cell = ablation(ablation_campaign(tmp_path / "c", by=by))
    assert (by == "alone") == (cell.alone is not None) == (cell.left_out is None)
    assert all(one.interaction is None for one in cell.units)
    assert all((one.alone is None) == (by == "without") for one in cell.units)


def test_interval_of_a_sum_counts_shared_arms_whole(tmp_path: Path) -> None:
    """Three alone effects share two arms: what is left is twice the arm without fast paths, less two others."""
    cell = ablation(ablation_campaign(tmp_path / "c", jitter=0.004))
    assert cell.alone is not None and cell.whole is not None
    single = cell.whole.half_width_s / 2**0.5
    # off - blocks + blocks - (blocks + norm) + off - vae
    assert single * (2**2 + 1 + 1) ** 0.5 == pytest.approx(cell.alone.sum.half_width_s)


def ran(which: str, state: str, calls: int, only_in: str | None = None) -> Any:
    """A unit's sites in another state than they should be, in the arms whose name holds ``only_in``."""

    def changes(name: str, own: Units) -> dict[str, Any]:
        found = sites(UNITS, own)
        for site in UNITS[which]:
            if only_in is None or only_in in name:
                found[site] = found[site] | {"state": state, "reason": "no card", "calls_fused": calls}
        return {"sites": found}

    return changes


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param(
            ran("vae", "declined", 0), "vae made no fused call with all fast paths (declined: no card)", id="never"
        ),
        pytest.param(
            ran("norm", "eager", 0, "alone:norm"), "norm made no fused call alone (eager: no card)", id="alone"
        ),
        pytest.param(
            lambda name, own: {"sites": sites(UNITS, own) | {"vae_norms": {"state": "declined", "calls_fused": 0}}},
            "Of vae, vae_norms made no fused call (declined).",
            id="one-of-two",
        ),
        pytest.param(ran("vae", "fused", 9, "alone:norm"), "vae ran where it was left out", id="not-left-out"),
    ],
)
def test_what_did_not_run_as_the_arm_says_is_told(tmp_path: Path, changes: Any, told: str) -> None:
    cell = ablation(ablation_campaign(tmp_path / "c", changes=changes))
    assert 1 == sum(told in text for text in note_texts(cell))


def test_a_site_of_no_unit_and_other_outputs_are_told(tmp_path: Path) -> None:
    def changes(name: str, own: Units) -> dict[str, Any]:
        more = {"new": {"state": "fused", "reason": None, "calls_fused": 4, "calls_eager": 0}}
        return {"sites": sites(UNITS, own) | more, "pictures": (2,) if name == "alone:vae" else (1,)}

    notes = note_texts(ablation(ablation_campaign(tmp_path / "c", changes=changes)))
    assert any(text.startswith("new ran with all fast paths and belongs to no unit") for text in notes)
    assert any("Outputs of alone:vae break the contract" in text for text in notes)


def test_one_block_has_numbers_and_says_so(tmp_path: Path) -> None:
    cell = ablation(ablation_campaign(tmp_path / "c", blocks=1))
    assert 5 == cell.degrees_of_freedom
    assert any(text.startswith("One block") for text in note_texts(cell))


def test_unequal_work_leaves_no_numbers(tmp_path: Path) -> None:
    changes = lambda name, own: {"steps_recorded": 4} if name == "alone:vae" else {}  # noqa: E731
    analysis = analyse(Campaign.open(ablation_campaign(tmp_path / "c", changes=changes).write()))
    (cell,) = ablations_of(analysis)
    assert cell.whole is None and () == cell.units
    assert "panda: alone:vae is INVALID" in str(cell.no_numbers)
    assert "no numbers, because panda: alone:vae is INVALID" in render_markdown(analysis)


def bench_file(folder: Path, saved_us: dict[str, list[float]]) -> Path:
    """A result of ``fastpaths bench``; each site saves these microseconds a call, a row each."""

    def time(median_us: float) -> dict[str, Any]:
        return {"minimum_us": median_us, "median_us": median_us, "maximum_us": median_us, "samples": 9} | {
            "rounds_us": [median_us] * 3
        }

    calls = [
        {
            **{"site": site, "kernel": site, "workload": f"16x16#{index}", "shapes": f"{index}", "bits": "equal"},
            **{"reason": None, "rotation": 1, "traffic_bytes": 1, "source_sha256": None, "floor": None},
            **{"eager": time(10 + saved), "fused": time(10.0)},
            **{"speedup": 2.0, "times_floor": None},
        }
        for site, values in saved_us.items()
        for index, saved in enumerate(values)
    ]
    document: dict[str, Any] = {
        "schema": "fuseproof.fastpaths-bench/2",
        "card": {"name": "Card", "capability": "9.0", "power_limit_w": None, "driver": None},
        **{"versions": {}, "seed": 0, "replays": 5, "rounds": 3, "calls": calls, "guard": None, "counters": None},
        "selection": {"model": "m", "sites": [], "shapes": [], "captured_sha256": None, "own_sha256": None},
    }
    path = folder / "bench.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_predicted_microseconds_stand_beside_what_was_measured(tmp_path: Path) -> None:
    folder = ablation_campaign(tmp_path / "c").write()
    keep_bench(read_bench(bench_file(tmp_path, {"norm": [5000.0], "vae_norms": [100.0, 4000.0]})), folder)
    (cell,) = ablations_of(analyse(Campaign.open(folder)))
    norm, vae = prediction_texts(cell)
    assert norm.startswith(f"norm: 5000.0 µs a call × {CALLS} calls = 500.0 ms predicted; measured ")
    assert norm.endswith(": agrees.")
    assert "vae: 100.0 to 4000.0 µs a call × 100 calls = 10.0 to 400.0 ms predicted, from 2 shapes and kernels, " in vae
    assert "without vae_convolutions; " in vae
    assert unit(cell, "blocks").prediction is None
    write_report(folder)
    assert "Predicted, ms" in (folder / "report.html").read_text(encoding="utf-8")
    assert f"  {KEPT_BENCH}\n" in (folder / "SHA256SUMS").read_text(encoding="utf-8")


def test_a_campaign_keeps_one_bench(tmp_path: Path) -> None:
    folder = ablation_campaign(tmp_path / "c").write()
    keep_bench(read_bench(bench_file(tmp_path, {"norm": [5.0]})), folder)
    with pytest.raises(UsageError, match="already holds other times"):
        keep_bench(read_bench(bench_file(tmp_path, {"norm": [6.0]})), folder)
    with pytest.raises(UsageError, match=r"--bench: .* holds no times of kernels"):
        read_bench(folder / "campaign.json")


def test_report_takes_a_bench_for_an_ablation_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = str(bench_file(tmp_path, {"norm": [5000.0]}))
    assert 0 == main(["report", str(ablation_campaign(tmp_path / "c").write()), "--bench", bench])
    assert "500.0 ms predicted" in capsys.readouterr().out
    other = CampaignBuilder(tmp_path / "other").blocks([[10, 9, 9, 10], [9, 10, 10, 9]]).write()
    assert 2 == main(["report", str(other), "--bench", bench])
    assert "--bench is for an ablation" in capsys.readouterr().err
    assert 2 == main(["report", str(other), "--bench", bench, "--check"])


def test_a_report_holds_the_section_and_verify_recomputes_it(tmp_path: Path) -> None:
    folder = ablation_campaign(tmp_path / "c", level=overlapping).write()
    analysis = write_report(folder)
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    assert MAIN_LIMIT_BYTES > len(main_part(markdown).encode())
    assert "## Ablation" in markdown and "| **Sum − whole** |" in markdown
    assert "Arms differ only in: --fastpaths (each one alone, each left out, none and all)." in markdown
    assert any("do not add up to it" in line for line in analysis.summary_lines())
    stored = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert 3 == len(stored["ablation"][0]["units"])
    assert "not the whole" == stored["ablation"][0]["alone"]["finding"]
    stored["ablation"][0]["units"][0]["alone"]["saved_s"] += 0.5
    (folder / "report.json").write_text(json.dumps(stored, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    found = [
        finding.text for check in verify_campaign(folder).checks if check.name == "report" for finding in check.findings
    ]
    assert any("ablation[0].units[0].alone.saved_s" in text for text in found)


def test_other_campaigns_know_nothing_of_it(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c").blocks([[10, 9, 9, 10], [9, 10, 10, 9]])
    write_report(builder.write())
    assert "ablation" not in (tmp_path / "c" / "report.json").read_text(encoding="utf-8")
    assert "Ablation" not in (tmp_path / "c" / "report.md").read_text(encoding="utf-8")
    assert "ablation" not in Campaign.open(tmp_path / "c").plan.to_json()


def scattering(scale: float) -> Any:
    """Runs whose times scatter by the factor ``exp(scale)``."""
    chance = random.Random(3)
    return lambda name, own: {"worker_s": additive(own) * math.exp(scale * chance.gauss())}


@pytest.mark.parametrize(("scale", "is_wide"), [(0.001, False), (1.0, True)], ids=["quiet", "nothing can be told"])
def test_a_line_has_one_sign_and_the_interval_of_the_verdict(tmp_path: Path, scale: float, is_wide: bool) -> None:
    """The word of a wide interval does not wait for a single degree of freedom."""
    folder = ablation_campaign(tmp_path / "c", changes=scattering(scale)).write()
    cell = next(one for one in write_report(folder).cells if "alone:blocks" in one.name)
    line, comparison = verdict_line(cell), cell.verdict.comparison
    assert comparison is not None and comparison.degrees_of_freedom > 1
    assert "latency" not in line
    assert ("time saved: no single number (" in line) is is_wide
    assert ("interval: wider than ±100 %, 2 blocks" in line) is is_wide
    assert (f": {interval(*comparison.interval_used)} %, 2 blocks" in line) is not is_wide
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert (interval(*comparison.interval_used, 3).strip("[]") in report) is not is_wide
    assert (report.count("wider than ±100 %") > 1) is is_wide


def test_earlier_words_are_kept_and_other_campaigns_have_no_new_ones(tmp_path: Path) -> None:
    folder = ablation_campaign(tmp_path / "c").write()
    earlier = analyse(Campaign.open(folder), edition=WARM_UP_AND_FIGURES).cells[0]
    assert "% latency (" in verdict_line(earlier) and "interval of the reduction" in verdict_line(earlier)
    plain = Campaign.open(CampaignBuilder(tmp_path / "plain").blocks([[10, 9, 9, 10], [9, 10, 10, 9]]).write())
    before, now = (render_files(analyse(plain, edition=one), NO_FIGURES) for one in (WARM_UP_AND_FIGURES, TIME_SAVED))
    assert before == now


@pytest.mark.parametrize("blocks", [1, 2])
def test_curved_drift_is_not_called_an_overlap(tmp_path: Path, blocks: int) -> None:
    """Blocks that are slower at their edges, by 0.5 %: one cannot tell that from effects, two say what it may do."""
    cell = ablation(ablation_campaign(tmp_path / "c", blocks=blocks, drift=lambda x: 0.05 * x * x))
    totals = [total for total in (cell.alone, cell.left_out) if total]
    assert "not the whole" not in [total.finding for total in totals]
    told = "1 block cannot tell curved drift" if blocks == 1 else "arms did not give every arm every place"
    assert 1 == sum(told in text for text in note_texts(cell))
    earlier = analyse(Campaign.open(tmp_path / "c"), edition=TIME_SAVED)
    assert not any(told in text for text in note_texts(ablations_of(earlier)[0]))


def test_an_overlap_is_told_from_curved_drift_by_two_blocks(tmp_path: Path) -> None:
    one = ablation(ablation_campaign(tmp_path / "one", level=overlapping, blocks=1))
    two = ablation(ablation_campaign(tmp_path / "two", level=overlapping))
    assert ["unknown", "not the whole"] == [cell.alone.finding for cell in (one, two) if cell.alone]


def test_arms_that_fit_neither_needs_nor_by_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, change in (("needs", {"vae": ["norm"]}), ("needs", {"norm": ["vae"], "vae": ["norm"]}), ("by", "alone")):
        builder = ablation_campaign(tmp_path / f"{name}{len(change)}")
        builder.plan["ablation"][name] = change
        assert 2 == main(["report", str(builder.write())])
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert "arm" in said or "need it in turn" in said


def test_a_bench_of_another_card_predicts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = ablation_campaign(tmp_path / "c")
    builder.environment = builder.environment | {"gpus": [{"name": "Other Card", "uuid": "GPU-1", "index": 0}]}
    folder, path = builder.write(), bench_file(tmp_path, {"norm": [5000.0]})
    assert 2 == main(["report", str(folder), "--bench", str(path)])
    assert "times of another card: Card, and the campaign ran on Other Card" in capsys.readouterr().err
    assert not (folder / KEPT_BENCH).exists()
    keep_bench(read_bench(path), folder)
    (cell,) = ablations_of(analyse(Campaign.open(folder)))
    assert [] == prediction_texts(cell)
    assert any("of another card: Card, and the campaign" in text for text in note_texts(cell))


def test_other_versions_of_a_bench_are_told(tmp_path: Path) -> None:
    folder = ablation_campaign(tmp_path / "c").write()
    for version, told in (("2.13.0+cu130", 0), ("2.11.0", 1)):
        path = bench_file(tmp_path, {"norm": [5000.0]})
        path.write_text(
            path.read_text(encoding="utf-8").replace('"versions": {}', f'"versions": {{"torch": "{version}"}}')
        )
        (folder / KEPT_BENCH).unlink(missing_ok=True)
        keep_bench(read_bench(path), folder)
        (cell,) = ablations_of(analyse(Campaign.open(folder)))
        assert told == sum("torch 2.11.0 against 2.13.0" in text for text in note_texts(cell))
        assert 1 == len(prediction_texts(cell))


def test_a_bench_that_no_report_can_hold_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, path = ablation_campaign(tmp_path / "c").write(), bench_file(tmp_path, {"norm": [5000.0]})
    huge = path.read_text(encoding="utf-8").replace("5010.0", "1e308")
    (tmp_path / "huge.json").write_text(huge, encoding="utf-8")
    assert 2 == main(["report", str(folder), "--bench", str(tmp_path / "huge.json")])

    def fails(*_: Any) -> None:
        raise FuseproofError("no report")

    monkeypatch.setattr("fuseproof.harness.report.write.render_files", fails)
    assert 1 == main(["report", str(folder), "--bench", str(path)])
    assert not (folder / KEPT_BENCH).parent.exists()
