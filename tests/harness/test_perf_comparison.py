"""Rows of a comparison, memory claims, equal-work checks, and their rendering as markdown and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.perf.comparison import (
    PerfComparison,
    compare_dumps,
    distinct_labels,
    merged_order,
)
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.harness.perf.memory import memory_claim
from fuseproof.harness.perf.steps import step_statistics
from fuseproof.harness.perf.text import escape_cell, latency_phrase, render_comparison
from tests.harness.perf_dump_files import KLEIN, LONGLIVE2, STAGES, peaks, stage_list, step_list, write_dump


def compare(tmp_path: Path, *changes: dict[str, Any]) -> PerfComparison:
    paths = [write_dump(tmp_path / f"{index}.json", **values) for index, values in enumerate(changes)]
    return compare_dumps([read_perf_dump(path) for path in paths])


def table_line(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {start}"))


def test_a_real_pair() -> None:
    comparison = compare_dumps([read_perf_dump(LONGLIVE2[0]), read_perf_dump(LONGLIVE2[1])])
    text = render_comparison(comparison)
    assert "\ni2v-r1-b1.json: Worker E2E 5613.36 → 5273.72 ms, −6.05 % latency (1.064× faster)." in text
    assert "Single runs: a description, not a verdict." in text
    assert table_line(text, "Denoise ") == "| Denoise | 1502.48 | 1500.14 | −2.34 | −0.16 % |"
    assert table_line(text, "DecodingStage") == "| DecodingStage | 2627.66 | 2288.92 | −338.74 | −12.89 % |"
    # 476.57 ms of the worker's time belong to no stage; entries recorded outside the total do not fill them
    assert (
        table_line(text, "unattributed") == "| unattributed (worker E2E - stages) | 476.57 | 477.01 | +0.44 | +0.09 % |"
    )
    assert "spill_arrays (outside the total)" in text
    expected = "Memory: 1.38 GiB more reserved memory (59.64 → 61.02 GiB, +2.31 %); allocated memory hardly moves"
    assert f"{expected} (55.85 → 55.84 GiB, −0.01 %)." in text
    assert "not checked: width, height, seed, guidance_scale, warmup_mode, warmup_steps." in text


def test_a_slower_candidate_is_said_so() -> None:
    comparison = compare_dumps([read_perf_dump(KLEIN[1]), read_perf_dump(KLEIN[0])])
    assert "+2.64 % latency (0.974×, slower)" in render_comparison(comparison)


@pytest.mark.parametrize(
    ("expected", "change"),
    [
        ("−2.25 % latency (1.023× faster)", -0.0225),
        ("+2.04 % latency (0.980×, slower)", 0.0204),
        ("0.00 % latency (1.000×)", 0.0),
        ("0.00 % latency (1.000×)", -0.00001),
    ],
)
def test_signs_are_never_ambiguous(expected: str, change: float) -> None:
    assert expected == latency_phrase(change)


def test_a_visible_change_of_a_short_stage_is_not_hidden(tmp_path: Path) -> None:
    before = stage_list(("TextEncodingStage", 639.75), ("DecodingStage", 550.99))
    after = stage_list(("TextEncodingStage", 412.13), ("DecodingStage", 612.44))
    text = render_comparison(compare(tmp_path, {"steps": before}, {"steps": after}))
    assert table_line(text, "DecodingStage").endswith("| +61.45 | +11.15 % |")
    assert table_line(text, "TextEncodingStage").endswith("| −227.62 | −35.58 % |")


def test_added_and_removed_stages_are_marked(tmp_path: Path) -> None:
    before = stage_list(("OldStage", 10.0), ("DenoisingStage", 900.0))
    after = stage_list(("DenoisingStage", 900.0), ("LTX2RefinementStage", 60.0))
    comparison = compare(tmp_path, {"steps": before}, {"steps": after})
    assert [(row.name, row.marker(0), row.change(0)) for row in comparison.stages] == [
        ("OldStage", "removed", None),
        ("DenoisingStage", "", 0.0),
        ("LTX2RefinementStage", "added", None),
    ]
    text = render_comparison(comparison)
    assert table_line(text, "LTX2RefinementStage") == "| LTX2RefinementStage | n/a | 60.00 | n/a | added |"
    assert table_line(text, "OldStage") == "| OldStage | 10.00 | n/a | n/a | removed |"


def test_stages_keep_the_order_of_execution() -> None:
    assert ["A", "X", "B", "Y", "C"] == merged_order([["A", "B", "C"], ["A", "X", "B", "Y"]])
    assert ["A", "B"] == merged_order([["A", "B"], ["B", "A"]])


def test_hostile_names_stay_in_their_cells(tmp_path: Path) -> None:
    name = "Zoë|<script>`x`\x1b[31m\n| a | b |"
    prompt = "a | b </details><script>alert(1)</script> [x](http://y) @someone"
    changes = {"steps": stage_list((name, 5.0)), "meta": {"prompt": prompt, "model": "m"}}
    text = render_comparison(compare(tmp_path, changes, changes))
    assert "<script>" not in text
    assert "</details>" not in text
    assert "\x1b" not in text
    assert "](http" not in text
    assert "@someone" not in text
    columns = {line.count("|") for line in text.splitlines() if line.startswith("| ") and "Zoë" in line}
    assert columns == {6}
    assert "a b" == escape_cell("a\n b")


def test_what_no_stage_accounts_for_has_its_own_row(tmp_path: Path) -> None:
    changes = {
        "total_duration_ms": 17_300.0,
        "steps": stage_list(("TextEncodingStage", 300.0), ("DenoisingStage", 17_000.0)),
        "timers": {"worker_ms": 17_300.0, "client_ms": 19_900.0, "save_ms": 0.0},
    }
    comparison = compare(tmp_path, changes, changes)
    assert comparison.unattributed.note == "client E2E - stages - save"
    assert comparison.unattributed.baseline_ms == pytest.approx(2_600.0)
    assert table_line(render_comparison(comparison), "unattributed").count("| 2600.00 ") == 2


def test_entries_outside_the_total_do_not_count_as_stages(tmp_path: Path) -> None:
    stages = stage_list(("DenoisingStage", 950.0), ("Scheduler.return_result.spill_cuda", 400.0))
    comparison = compare(tmp_path, {"steps": stages}, {"steps": stages})
    assert [row.name for row in comparison.outside_stages] == ["Scheduler.return_result.spill_cuda"]
    assert comparison.unattributed.baseline_ms == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("unsteady", "median_ms", "steps_ms"),
    [
        ((0, 1), 87.0, (904.0, 31.0, 86.0, 88.0)),
        ((0, 1), 128.0, (30.0, 54.0, 127.0, 128.0, 129.0, 128.0)),
        ((), 87.0, (86.0, 87.0, 88.0)),
        ((), 5.0, (5.0,)),
        ((), 455.0, (900.0, 10.0)),
        ((), 10.0, (10.0, 10.0, 900.0, 10.0)),
    ],
    ids=["launch times", "sglang's own baseline", "steady", "one step", "two steps say nothing", "a late tail is kept"],
)
def test_unsteady_leading_steps_are_flagged(
    unsteady: tuple[int, ...], median_ms: float, steps_ms: tuple[float, ...]
) -> None:
    statistics = step_statistics(steps_ms)
    assert statistics is not None
    assert (unsteady, median_ms) == (statistics.unsteady_steps, statistics.median_ms)


@pytest.mark.parametrize("path", [*LONGLIVE2, *KLEIN], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_steps_of_real_synchronised_runs_are_all_steady(path: Path) -> None:
    statistics = step_statistics(read_perf_dump(path).denoise_steps_ms)
    assert statistics is not None
    assert statistics.unsteady_steps == ()


def test_unsteady_steps_are_noted_and_leave_the_stage_alone(tmp_path: Path) -> None:
    changes = {
        "steps": stage_list(("DenoisingStage", 1109.0)),
        "total_duration_ms": 1200.0,
        "denoise_steps_ms": step_list(904.0, 31.0, 86.0, 88.0),
    }
    comparison = compare(tmp_path, changes, changes)
    assert comparison.times[1].baseline_ms == 1109.0
    assert "denoise step 0 (904.0 ms), 1 (31.0 ms) is far from the steady 87.0 ms" in comparison.warnings[0]
    line = table_line(render_comparison(comparison), "step left out")
    assert "| step left out (counted from 0) | step 0, step 1 | step 0, step 1 |" == line


def test_means_are_over_the_same_steps_in_both_runs(tmp_path: Path) -> None:
    cold, warm = step_list(500.0, 80.0, 80.0, 80.0), step_list(100.0, 80.0, 80.0, 80.0)
    comparison = compare(tmp_path, {"denoise_steps_ms": warm}, {"denoise_steps_ms": cold})
    assert [(), (0,)] == [entry.unsteady_steps for entry in comparison.steps if entry]
    assert 2 * [(80.0, (0,))] == [(entry.mean_ms, entry.left_out_steps) for entry in comparison.steps if entry]
    other = compare(tmp_path, {"denoise_steps_ms": warm[:3]}, {"denoise_steps_ms": cold})
    assert [(), (0,)] == [entry.left_out_steps for entry in other.steps if entry]


def test_denoise_is_not_available_without_stage_and_steps(tmp_path: Path) -> None:
    changes = {"steps": stage_list(("GenerationStage", 900.0)), "denoise_steps_ms": []}
    text = render_comparison(compare(tmp_path, changes, changes))
    assert table_line(text, "Denoise ") == "| Denoise | n/a | n/a | n/a | absent |"
    assert "n/a: no dump records its steps." in text


def requests_of(*times_s: float) -> dict[str, Any]:
    requests = [{"index": index, "worker_ms": time_s * 1000} for index, time_s in enumerate(times_s)]
    worker_ms = sum(times_s) * 1000
    meta = {"prompt": ["a lamp"] * len(times_s), "model": "m"}
    return {
        "requests": requests,
        "timers": {"worker_ms": worker_ms},
        "meta": meta,
        "total_duration_ms": times_s[0] * 1000,
    }


def test_a_cold_first_request_is_never_the_headline(tmp_path: Path) -> None:
    cold, steady = requests_of(0.369, 0.242, 0.244, 0.246), requests_of(0.244, 0.242, 0.244, 0.246)
    comparison = compare(tmp_path, cold, steady)
    assert comparison.headline.name == "Steady request (median)"
    assert comparison.headline.baseline_ms == pytest.approx(244.0)
    rows = {row.name: row.baseline_ms for row in comparison.times}
    assert rows["First request"] == pytest.approx(369.0)
    assert rows["Steady request (minimum)"] == pytest.approx(242.0)
    assert "the first of 4 requests took 369.0 ms" in comparison.warnings[0]


def test_denoise_from_different_sources_is_not_one_timer(tmp_path: Path) -> None:
    comparison = compare(tmp_path, {}, {"steps": stage_list(("GenerationStage", 900.0))})
    assert any("not the same timer" in warning for warning in comparison.warnings)


MEMORY_CASES = {
    "allocated -20 %, reserved +3 %": ((40.0, 50.0), (32.0, 51.5), "mixed", "8.00 GiB less allocated memory"),
    "only allocated falls": ((40.0, 50.0), (32.0, 50.0), "mixed", "reserved memory does not move"),
    "both fall": ((40.0, 50.0), (38.0, 47.0), "less", "3.00 GiB less reserved memory"),
    "both grow": ((40.0, 50.0), (41.0, 51.0), "more", "1.00 GiB more allocated memory"),
    "only reserved grows": ((55.85, 59.64), (55.84, 61.02), "more", "allocated memory hardly moves"),
    "nothing moves": ((40.0, 50.0), (40.0, 50.0), "unchanged", "reserved memory does not move (50.00 GiB)"),
}


@pytest.mark.parametrize(("before", "after", "agreement", "words"), MEMORY_CASES.values(), ids=MEMORY_CASES.keys())
def test_memory_claims(before: tuple[float, float], after: tuple[float, float], agreement: str, words: str) -> None:
    kinds = ("allocated", "reserved")
    claim = memory_claim(dict(zip(kinds, before, strict=True)), dict(zip(kinds, after, strict=True)))
    assert agreement == claim.agreement
    assert words in claim.sentence
    assert ("mixed, no saving" in claim.sentence) == (agreement == "mixed")


SPREAD_CASES = {
    "within": (2.05, 0.12, "unchanged", "host RSS unchanged, within the 0.12 GiB by which one arm's own runs differ"),
    "beyond": (2.05, 0.04, "more", "0.050 GiB more host RSS"),
    "a saving within": (1.90, 0.12, "unchanged", "(2.00 → 1.90 GiB, −5.00 %)"),
    "no change": (2.00, 0.12, "unchanged", "host RSS does not move"),
}


@pytest.mark.parametrize(("after", "spread", "agreement", "words"), SPREAD_CASES.values(), ids=SPREAD_CASES.keys())
def test_a_change_within_one_arms_own_spread_is_none(after: float, spread: float, agreement: str, words: str) -> None:
    claim = memory_claim({"host RSS": 2.0}, {"host RSS": after}, {"host RSS": spread})
    assert agreement == claim.agreement
    assert words in claim.sentence


def test_memory_that_is_not_recorded_is_said_so() -> None:
    assert "not recorded" in memory_claim({}, {"reserved": 1.0}).sentence
    assert "1.00 GiB more host RSS" in memory_claim({"host RSS": 2.0}, {"host RSS": 3.0}).sentence


def test_the_request_peak_is_the_headline_and_the_warmup_peak_is_shown(tmp_path: Path) -> None:
    memory = {"warmup_peak": peaks(60 * 1024, 61 * 1024), "after_forward": peaks(40 * 1024, 61 * 1024)}
    comparison = compare(tmp_path, {"memory_checkpoints": memory}, {"memory_checkpoints": memory})
    first = comparison.memory.rows[0]
    assert (first.checkpoint, first.kind, first.baseline_gib) == ("after_forward", "allocated", 40.0)
    assert "allocated memory does not move (40.00 GiB)" in comparison.memory.claims[0].sentence
    text = render_comparison(comparison)
    assert table_line(text, "warm-up peak") == "| warm-up peak (warmup_peak) | allocated | 60.00 | 60.00 | 0.000 |"


UNEQUAL = {
    "prompt": ({"meta": {"prompt": "a cat", "model": "org/name"}}, "prompt"),
    "model": ({"meta": {"prompt": "a lamp", "model": "org/other"}}, "model"),
    "steps 27 and 50": ({"denoise_steps_ms": step_list(*[9.0] * 27)}, "denoise steps"),
    "size": ({"config": {"width": 512}}, "width"),
    "seed": ({"config": {"seed": 43}}, "seed"),
    "guidance": ({"config": {"guidance_scale": 1.0}}, "guidance_scale"),
    "negative prompt": ({"config": {"negative_prompt": "ugly"}}, "negative_prompt"),
    "revision": ({"config": {"resolved_revision": "b" * 40}}, "resolved_revision"),
    "warm-up 50 against 1": ({"config": {"warmup_steps": 1}}, "warmup_steps"),
    "timer": ({"timer": "http"}, "timer"),
    "warm-up": ({"warmup": False}, "warm-up"),
    "half the transformer work": ({"requests": [{"work": {"transformer_tokens": 500}}]}, "transformer tokens"),
    "conditioning cache hits": (
        {"requests": [{"seed": 0, "conditioning_cache_hits": 1, "work": {"transformer_tokens": 1000}}]},
        "conditioning cache hits",
    ),
    "batch size": ({"config": {"batch_size": 4}}, "batch_size"),
    "saving inside one total": (
        {"steps": stage_list(*STAGES, ("SavingStage", 5.0))},
        "saving inside the worker's time",
    ),
    "seeds of requests": ({"requests": [{"seed": 1, "work": {"transformer_tokens": 1000}}]}, "seeds of the requests"),
}
BASELINE_FACTS: dict[str, Any] = {
    "denoise_steps_ms": step_list(*[18.0] * 50),
    "timer": "in-process",
    "warmup": True,
    "requests": [{"seed": 0, "conditioning_cache_hits": 0, "work": {"transformer_tokens": 1000}}],
    "config": {
        "batch_size": 1,
        "width": 1024,
        "seed": 42,
        "guidance_scale": 4.5,
        "negative_prompt": None,
        "resolved_revision": "a" * 40,
        "warmup_steps": 50,
    },
}


@pytest.mark.parametrize(("changes", "field"), UNEQUAL.values(), ids=UNEQUAL.keys())
def test_unequal_work_has_no_ratio(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    config = BASELINE_FACTS["config"] | changes.get("config", {})
    comparison = compare(tmp_path, BASELINE_FACTS, BASELINE_FACTS | changes | {"config": config})
    assert [difference.field for difference in comparison.work[0].blocking] == [field]
    assert not comparison.is_equal_work
    text = render_comparison(comparison)
    assert text.startswith("### INVALID: unequal work, no ratio is shown")
    assert "latency" not in text
    assert set(comparison.to_json()) == {"schema", "labels", "is_equal_work", "work", "explanations", "outputs"}
    forced = render_comparison(comparison, is_forced=True)
    assert "### INVALID: unequal work, compared all the same (--force)" in forced
    assert "latency" in forced


def test_a_prompt_as_text_and_as_a_list_is_one_prompt(tmp_path: Path) -> None:
    assert compare(tmp_path, {}, {"meta": {"prompt": "a lamp", "model": "org/name"}}).is_equal_work


def test_what_the_arms_compare_is_a_note(tmp_path: Path) -> None:
    flags = {"fastpaths": "off", "dtype": "float32", "output_path": "/a", "width": None}
    other = {"fastpaths": "auto", "dtype": "bfloat16", "output_path": "/b", "width": 256}
    versions = (
        {"libraries": {"torch": "2.13.0"}, "torch_threads": 1, "python_hash_seed": "0"},
        {"libraries": {"torch": "2.14.0"}, "torch_threads": 2, "python_hash_seed": "7"},
    )
    before = {"config": flags, "environment": versions[0], "outputs": [{"raw_sha256": "1"}]}
    after = {"config": other, "environment": versions[1], "outputs": [{"raw_sha256": "2"}], "commit_hash": "b" * 40}
    comparison = compare(tmp_path, before, after)
    assert comparison.is_equal_work
    notes = [difference.field for difference in comparison.work[0].notes]
    assert notes == ["commit", "torch threads", "PYTHONHASHSEED", "fastpaths", "dtype", "torch version", "outputs"]
    assert "width" in comparison.work[0].unchecked


@pytest.mark.parametrize(
    ("kind", "total_ms", "steps"),
    [("work", 50.0, 2), ("work", 50.0, 50), ("note", 250.0, 50), (None, 500.0, 50)],
    ids=["20x with 2 steps", "20x with 50 steps", "4x", "2x"],
)
def test_an_excessive_speedup_is_not_believed(tmp_path: Path, kind: str | None, total_ms: float, steps: int) -> None:
    baseline = {"denoise_steps_ms": step_list(*[18.0] * 50)}
    comparison = compare(
        tmp_path, baseline, {"denoise_steps_ms": step_list(*[18.0] * steps), "total_duration_ms": total_ms}
    )
    found = {difference.field: difference.kind for difference in comparison.work[0].differences}
    assert kind == found.get("excessive speed-up")
    assert ("denoise steps" in found) == (steps == 2)
    assert comparison.is_equal_work == (kind != "work")


DOUBT = (
    "3.50x apart: more than is usually believed; check that both runs did the same work on an idle machine, or run "
    "A-B-B-A blocks."
)


def test_a_doubtful_speedup_is_no_headline(tmp_path: Path) -> None:
    comparison = compare(tmp_path, {"total_duration_ms": 3500.0}, {"total_duration_ms": 1000.0})
    text = render_comparison(comparison)
    assert f"1.json: Worker E2E 3500.00 → 1000.00 ms, {DOUBT}\n" in text
    assert "faster" not in text
    assert "nothing recorded says" not in text
    assert "- the worker times are 3.50x apart: more than is usually believed, so the work may" in text
    assert "against 3.5" not in text
    assert comparison.to_json()["doubts"] == ["3.50x apart: more than is usually believed"]


def test_an_unbelieved_speedup_is_no_headline_when_forced(tmp_path: Path) -> None:
    comparison = compare(tmp_path, {}, {"total_duration_ms": 50.0})
    refused, forced = render_comparison(comparison), render_comparison(comparison, is_forced=True)
    reason = "excessive speed-up: the worker times are 20.00x apart, and more than 10x is not believed"
    for text in (refused, forced):
        assert table_line(text, "excessive") == f"| {reason} | 1000.00 ms | 50.00 ms | 1.json |"
        assert "faster" not in text
    assert "20.00x apart: more than is usually believed; check" in forced


def test_the_doubt_is_about_the_time_that_is_quoted(tmp_path: Path) -> None:
    comparison = compare(tmp_path, requests_of(0.9, 0.4, 0.4), requests_of(0.9, 0.1, 0.1))
    text = render_comparison(comparison)
    assert "Steady request (median) 400.00 → 100.00 ms, 4.00x apart: more than is usually believed; check" in text


def test_a_believable_speedup_keeps_its_headline(tmp_path: Path) -> None:
    text = render_comparison(compare(tmp_path, {}, {"total_duration_ms": 400.0}))
    assert "1.json: Worker E2E 1000.00 → 400.00 ms, −60.00 % latency (2.500× faster)." in text
    assert "- nothing recorded says that the work or its measurement was unequal." in text


@pytest.mark.parametrize(
    ("expected", "paths"),
    [
        (("base.json", "x.json", "y.json"), ("base.json", "x.json", "y.json")),
        (("base.json", "x/p.json", "y/p.json"), ("base.json", "x/p.json", "y/p.json")),
        (("1/a/p.json", "2/a/p.json", "b/p.json"), ("/r/1/a/p.json", "/r/2/a/p.json", "/r/1/b/p.json")),
        (("p.json", "p.json (2)", "p.json (3)"), ("p.json", "p.json", "p.json")),
    ],
    ids=["different", "parents", "grandparents", "the same file"],
)
def test_labels_tell_files_apart(expected: tuple[str, ...], paths: tuple[str, ...]) -> None:
    assert expected == distinct_labels([Path(path) for path in paths])


def test_three_dumps_with_two_equal_names(tmp_path: Path) -> None:
    paths = [
        write_dump(tmp_path / "base.json"),
        write_dump(tmp_path / "x" / "perf.json", total_duration_ms=900.0),
        write_dump(tmp_path / "y" / "perf.json", total_duration_ms=1100.0),
    ]
    text = render_comparison(compare_dumps([read_perf_dump(path) for path in paths]))
    assert table_line(text, "Metric") == "| Metric | Baseline (ms) | x/perf.json (ms) | y/perf.json (ms) |"
    assert table_line(text, "Worker E2E").count("latency") == 2
    assert "x/perf.json: Worker E2E 1000.00 → 900.00 ms, −10.00 % latency (1.111× faster)." in text
    assert "y/perf.json: Worker E2E 1000.00 → 1100.00 ms, +10.00 % latency (0.909×, slower)." in text


def test_a_dump_against_itself_is_said_so(tmp_path: Path) -> None:
    assert "1.json holds the same run as the baseline" in compare(tmp_path, {}, {}).warnings[0]


def test_json_is_strict_and_complete(tmp_path: Path) -> None:
    comparison = compare(tmp_path, requests_of(0.3, 0.2), requests_of(0.3, 0.25))
    values = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert values["schema"] == "fuseproof.compare-perf/1"
    assert values["is_equal_work"] is True
    assert values["times"][0]["changes"] == [pytest.approx(0.1)]
    assert values["requests"][0]["count"] == 2
    assert str(tmp_path) not in json.dumps(values)


def test_the_same_dumps_render_the_same_bytes(tmp_path: Path) -> None:
    assert render_comparison(compare(tmp_path, {}, {})) == render_comparison(compare(tmp_path, {}, {}))
