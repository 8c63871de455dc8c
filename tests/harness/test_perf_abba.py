"""A-B-B-A blocks read from perf dumps: the public evidence, orders, and everything that makes a block prove nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import UsageError
from fuseproof.harness.perf.abba import AbbaComparison, compare_blocks
from fuseproof.harness.perf.abba_text import render_abba
from fuseproof.harness.perf.blocks import parse_order, read_blocks
from fuseproof.harness.statistics.comparison import Comparison, Thresholds
from fuseproof.harness.statistics.verdict import Word
from tests.harness.perf_dump_files import KLEIN, LONGLIVE2, step_list, write_block, write_dump

FASTER = (10.0, 9.0, 9.01, 10.01)


def judge(files: list[Path], order: str = "ABBA", **options: Any) -> AbbaComparison:
    return compare_blocks(read_blocks(files, order), Thresholds(), **options)


def numbers(comparison: AbbaComparison, metric: str = "worker") -> Comparison:
    found = comparison.verdicts[metric].comparison
    assert found is not None
    return found


def percents(*shares: float) -> list[float]:
    return [round(100 * share, 2) for share in shares]


def test_longlive2_blocks() -> None:
    comparison = judge(LONGLIVE2)
    worker = numbers(comparison)
    assert comparison.verdict.word is Word.FASTER
    assert [6.07, 5.53] == percents(*(block.mean_reduction for block in worker.blocks))
    assert [5.80] == percents(worker.reduction)
    assert [5.29, 6.32] == percents(*worker.interval)
    assert comparison.verdicts["denoise"].word is Word.SAME
    assert [0.01, -0.20] == percents(*(block.mean_reduction for block in numbers(comparison, "denoise").blocks))
    assert ["i2v-r1", "i2v-r3"] == [block.label for block in worker.blocks]
    assert comparison.exit_code == 0


def test_longlive2_candidates_differ_and_memory_is_said_plainly() -> None:
    comparison = judge(LONGLIVE2)
    details = [warning.detail for warning in comparison.warnings]
    assert details == ["blocks 1 and 2 measured different candidates: a98b0875, be05e7e6"]
    assert comparison.memory is not None
    expected = "Memory: 1.38 GiB more reserved memory (59.64 → 61.02 GiB, +2.31 %); allocated memory hardly moves"
    assert comparison.memory.sentence.startswith(expected)
    assert comparison.memory.agreement == "more"


def test_longlive2_text() -> None:
    text = render_abba(judge(LONGLIVE2))
    assert text.startswith("## A-B-B-A comparison: FASTER\n")
    assert "Worker E2E −5.80 % latency (1.062× faster), 95 % interval of the reduction [5.29, 6.32] %, 2 blocks" in text
    assert "| i2v-r1 | ABBA | 5.6111 → 5.2703 (6.07%) | 1.5028 → 1.5025 (0.01%) |" in text
    assert "| i2v-r3 | ABBA | 5.5972 → 5.2878 (5.53%) | 1.4977 → 1.5007 (−0.20%) |" in text
    assert "- CANDIDATES_DIFFER: blocks 1 and 2 measured different candidates: a98b0875, be05e7e6." in text
    assert "1.38 GiB more reserved memory" in text
    assert "| i2v-r3 | B2 | 5.2915 | 1.4995 | 55.84 | 61.02 | be05e7e6 | i2v-r3-b2.json |" in text
    assert "no test below 3 blocks" in text


def test_klein_blocks() -> None:
    comparison = judge(KLEIN)
    assert comparison.verdict.word is Word.FASTER
    assert [2.57] == percents(numbers(comparison).reduction)
    assert [2.39, 2.74] == percents(*numbers(comparison).interval)
    assert comparison.warnings == ()
    assert comparison.memory is not None
    assert comparison.memory.agreement == "unchanged"


def test_swapped_arms_are_slower() -> None:
    mirrored = [KLEIN[i] for i in (1, 0, 3, 2, 5, 4, 7, 6)]
    comparison = judge(mirrored)
    assert comparison.verdict.word is Word.SLOWER
    assert comparison.exit_code == 3
    assert "+2.64 % latency (0.974×, slower)" in render_abba(comparison)


def test_one_block_is_never_a_verdict() -> None:
    comparison = judge(KLEIN[:4])
    assert comparison.verdict.word is Word.INCONCLUSIVE
    assert comparison.verdict.headline is not None
    assert comparison.verdict.headline.code == "TOO_FEW_BLOCKS"
    assert comparison.exit_code == 0


def test_a_mirrored_block_is_read_by_slot(tmp_path: Path) -> None:
    first = write_block(tmp_path, FASTER)
    second = write_block(tmp_path, (9.0, 10.0, 10.01, 9.01), name="r2", order="baab")
    for order in ("ABBA,BAAB", "mirrored", "abba, baab"):
        comparison = judge([*first, *second], order)
        assert comparison.verdict.word is Word.FASTER
        assert [10.0, 10.0] == percents(*(block.mean_reduction for block in numbers(comparison).blocks))
        assert comparison.blocks[1].slot_labels == ("B1", "A1", "A2", "B2")


def test_a_mirrored_block_read_as_abba_is_caught(tmp_path: Path) -> None:
    first = write_block(tmp_path, FASTER)
    second = write_block(tmp_path, (9.0, 10.0, 10.01, 9.01), name="r2", order="baab")
    comparison = judge([*first, *second])
    assert comparison.verdict.word is Word.INVALID
    assert [reason.code for reason in comparison.verdict.reasons] == ["ARMS_SWAPPED"]


KEYS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "commit": ("commit (aaaaaaaa) shows it", {}, {}),
    "fast paths": (
        "fastpaths (off) shows it",
        {"commit_hash": "c" * 40, "config": {"fastpaths": "off"}},
        {"commit_hash": "c" * 40, "config": {"fastpaths": "auto"}},
    ),
    "any flag": (
        "fused_norm (false) shows it",
        {"commit_hash": "c" * 40, "config": {"fused_norm": False, "output_path": "x"}},
        {"commit_hash": "c" * 40, "config": {"fused_norm": True, "output_path": "y"}},
    ),
}


@pytest.mark.parametrize(("shown", "baseline", "candidate"), KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize(
    ("step", "orders"),
    [
        ("--order mirrored.", ("abba", "baab")),
        ("--order mirrored.", ("abba", "baab", "baab", "abba")),
        ("--order ABBA,BAAB,ABBA.", ("abba", "baab", "abba")),
    ],
    ids=["two blocks", "four blocks", "alternating"],
)
def test_swapped_arms_name_the_key_and_the_order(
    tmp_path: Path,
    step: str,
    orders: tuple[str, ...],
    shown: str,
    baseline: dict[str, Any],
    candidate: dict[str, Any],
) -> None:
    files: list[Path] = []
    for number, order in enumerate(orders):
        seconds = tuple(10.0 + number / 100 if arm == "a" else 9.0 for arm in order)
        files += write_block(tmp_path, seconds, name=f"r{number}", order=order, A=baseline, B=candidate)
    (reason,) = judge(files).verdict.reasons
    assert "ARMS_SWAPPED" == reason.code
    assert shown in reason.detail
    assert reason.next_step.endswith(step)
    word = judge(files, step.removeprefix("--order ").rstrip(".")).verdict.word
    assert Word.FASTER is word


def test_flags_exchanged_on_purpose_are_no_swap(tmp_path: Path) -> None:
    first, second = {"config": {"port": 1}}, {"config": {"port": 2}}
    files = [
        *write_block(tmp_path, FASTER, A=first, B=second),
        *write_block(tmp_path, FASTER, name="r2", A=second, B=first),
    ]
    assert judge(files).verdict.word is Word.FASTER


@pytest.mark.parametrize(
    ("phrase", "files", "min_effect"),
    [
        ("**FASTER**: Worker E2E −2.57 % latency (1.026× faster), ", KLEIN, 0.01),
        ("**SAME**: Worker E2E −2.57 % latency (1.026×), ", KLEIN, 0.05),
        ("**INCONCLUSIVE**: Worker E2E −2.57 % latency (1.026×), ", KLEIN, 0.026),
        ("**INCONCLUSIVE**: Worker E2E −2.53 % latency (1.026×), ", KLEIN[:4], 0.01),
    ],
    ids=["faster", "same", "inconclusive", "one block"],
)
def test_only_a_directional_verdict_has_directional_words(phrase: str, files: list[Path], min_effect: float) -> None:
    comparison = compare_blocks(read_blocks(files), Thresholds(min_effect=min_effect))
    assert phrase in render_abba(comparison)


def rss(*gib: float) -> list[dict[str, Any]]:
    return [{"memory_checkpoints": {"after_forward": {"peak_host_rss_mb": value * 1024}}} for value in gib]


@pytest.mark.parametrize(
    ("words", "baseline", "candidates"),
    [
        ("host RSS unchanged, within the 0.20 GiB by which one arm's own runs differ", (2.0, 2.2), ("b", "b")),
        ("0.10 GiB more host RSS", (2.1, 2.1), ("b", "b")),
        ("0.10 GiB more host RSS", (2.1, 2.1), ("b", "e")),
    ],
    ids=["within one arm's spread", "beyond it", "two candidates are not one arm's own runs"],
)
def test_memory_of_blocks(
    tmp_path: Path, words: str, baseline: tuple[float, float], candidates: tuple[str, str]
) -> None:
    files: list[Path] = []
    candidate_gib = (2.1, 2.3) if candidates == ("b", "e") else (2.2, 2.2)
    for index, (commit, gib) in enumerate(zip(candidates, candidate_gib, strict=True)):
        memory = {"A": rss(baseline[index])[0], "B": rss(gib)[0] | {"commit_hash": commit * 40}}
        files += write_block(tmp_path, FASTER, name=f"r{index}", **memory)
    memory_claim = judge(files).memory
    assert memory_claim is not None
    assert words in memory_claim.sentence


def test_files_in_alphabetical_order_are_caught() -> None:
    comparison = judge(sorted(KLEIN))
    assert comparison.exit_code == 6
    codes = [reason.code for reason in comparison.verdict.reasons]
    assert codes[:2] == ["ARM_MIXED", "ARM_MIXED"]
    assert "commit: 80da4432" in comparison.verdict.reasons[0].detail
    assert "no ratio is shown" in render_abba(comparison)
    assert "%" not in render_abba(comparison)


@pytest.mark.parametrize(
    ("expected", "text", "count"),
    [
        (("ABBA", "ABBA"), "ABBA", 2),
        (("BAAB",), "baab", 1),
        (("ABBA", "BAAB"), "ABBA,BAAB", 2),
        (("ABBA", "BAAB", "BAAB", "ABBA"), "mirrored", 4),
    ],
)
def test_orders(expected: tuple[str, ...], text: str, count: int) -> None:
    assert expected == parse_order(text, count)


@pytest.mark.parametrize(("text", "count"), [("AABB", 1), ("ABBA,BAAB", 3), ("", 1), ("ABBA,,BAAB", 2), ("random", 2)])
def test_an_order_that_does_not_fit_is_refused(text: str, count: int) -> None:
    with pytest.raises(UsageError, match=r"--order .* does not fit .* expected ABBA, BAAB, mirrored"):
        parse_order(text, count)


@pytest.mark.parametrize("count", [0, 2, 3, 5])
def test_incomplete_blocks_are_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"blocks of 4 files .A1 B1 B2 A2., got {count}"):
        read_blocks(KLEIN[:count])


def test_a_file_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"r1-a1\.json is given twice"):
        read_blocks([KLEIN[0], KLEIN[1], KLEIN[2], KLEIN[0]])


def test_a_copied_run_is_no_second_run(tmp_path: Path) -> None:
    copy = tmp_path / "r1-a2.json"
    copy.write_bytes(KLEIN[0].read_bytes())
    comparison = judge([*KLEIN[:3], copy, *KLEIN[4:]])
    assert comparison.exit_code == 6
    assert "holds the same run as" in comparison.verdict.reasons[0].detail


UNEQUAL = {
    "prompt": {"meta": {"prompt": "a cat", "model": "org/name"}},
    "steps": {"denoise_steps_ms": step_list(9.0)},
    "seed": {"config": {"seed": 43}},
    "warm-up": {"config": {"warmup_steps": 1}},
}


@pytest.mark.parametrize("changes", UNEQUAL.values(), ids=UNEQUAL.keys())
def test_unequal_work_is_invalid_unless_forced(tmp_path: Path, changes: dict[str, Any]) -> None:
    common = {"config": {"seed": 42, "warmup_steps": 50}}
    files = [
        *write_block(tmp_path, FASTER, A=common, B=common | changes),
        *write_block(tmp_path, FASTER, name="r2", A=common, B=common | changes),
    ]
    comparison = judge(files)
    assert (comparison.verdict.word, comparison.exit_code) == (Word.INVALID, 6)
    assert comparison.verdict.reasons[0].code == "UNEQUAL_WORK"
    assert comparison.verdict.comparison is None
    forced = judge(files, is_forced=True)
    assert (forced.verdict.word, forced.exit_code) == (Word.INCONCLUSIVE, 0)
    assert "UNEQUAL_WORK" in [reason.code for reason in forced.verdict.reasons]
    assert [10.0] == percents(numbers(forced).reduction)
    assert "compared all the same (--force)" in render_abba(forced)


@pytest.mark.parametrize("replayed", [0, 99], ids=["none replayed", "one call was not replayed"])
def test_graphs_that_were_asked_for_and_missed_are_invalid(tmp_path: Path, replayed: int) -> None:
    def arm(replayed: int) -> dict[str, Any]:
        work = {"transformer_calls": 100}
        return {
            "config": {"enable_breakable_cuda_graph": True},
            "graphs": {"captured": 1, "replayed": replayed},
            "requests": [{"index": 0, "work": work}],
        }

    def files(replayed: int) -> list[Path]:
        changed = {"A": arm(100), "B": arm(replayed)}
        folder = tmp_path / str(replayed)
        return [*write_block(folder, FASTER, **changed), *write_block(folder, FASTER, name="r2", **changed)]

    assert judge(files(100)).verdict.word is Word.FASTER
    comparison = judge(files(replayed))
    assert (comparison.verdict.word, comparison.exit_code) == (Word.INVALID, 6)
    reason = comparison.verdict.reasons[0]
    assert ("MISSING_GRAPH", True) == (reason.code, "r1-b1.json asked for CUDA graphs: replayed" in reason.detail)


def test_a_speedup_too_good_to_be_true_is_invalid(tmp_path: Path) -> None:
    seconds = (10.0, 0.5, 0.5, 10.0)
    comparison = judge([*write_block(tmp_path, seconds), *write_block(tmp_path, seconds, name="r2")])
    assert comparison.exit_code == 6
    assert (
        "the worker times are 20.00x apart, and more than 10x is not believed" in comparison.verdict.reasons[0].detail
    )


def test_an_aa_run_is_recognised(tmp_path: Path) -> None:
    same = {"commit_hash": "c" * 40}
    seconds = (10.0, 10.01, 10.01, 10.0)
    files = [*write_block(tmp_path, seconds, both=same), *write_block(tmp_path, seconds, name="r2", both=same)]
    comparison = judge(files)
    assert comparison.verdict.word is Word.SAME
    assert [warning.code for warning in comparison.warnings] == ["SAME_PROGRAM"]


def test_baselines_that_differ_are_warned_about(tmp_path: Path) -> None:
    old = {"commit_hash": "d" * 40}
    files = [*write_block(tmp_path, FASTER), *write_block(tmp_path, FASTER, name="r2", A=old)]
    warning = judge(files).warnings[0]
    assert (warning.code, warning.detail) == (
        "BASELINES_DIFFER",
        "blocks 1 and 2 measured different baselines: aaaaaaaa, dddddddd",
    )


def test_blocks_of_one_candidate_are_listed_together(tmp_path: Path) -> None:
    files: list[Path] = []
    for name, commit in (("r1", "b"), ("r2", "b"), ("r3", "e")):
        files += write_block(tmp_path, FASTER, name=name, B={"commit_hash": commit * 40})
    detail = judge(files).warnings[0].detail
    assert "blocks 1, 2 and 3 measured different candidates: bbbbbbbb (block 1 and 2), eeeeeeee (block 3)" == detail


def test_arms_that_differ_by_flags_alone(tmp_path: Path) -> None:
    same = {"commit_hash": "c" * 40}
    arms = {"A": same | {"config": {"fastpaths": "off"}}, "B": same | {"config": {"fastpaths": "auto"}}}
    comparison = judge([*write_block(tmp_path, FASTER, **arms), *write_block(tmp_path, FASTER, name="r2", **arms)])
    assert comparison.warnings == ()
    assert comparison.arms_differ == ("fastpaths: off against auto",)


def ours(client_ms: float, *warnings: str) -> dict[str, Any]:
    return {"timers": {"client_ms": client_ms, "denoise_ms": 5000.0}, "warnings": list(warnings)}


def test_our_dumps_add_the_client_timer_and_their_warnings(tmp_path: Path) -> None:
    files = [
        *write_block(tmp_path, FASTER, A=ours(10_300.0, "cold cache"), B=ours(9_300.0)),
        *write_block(tmp_path, FASTER, name="r2", A=ours(10_300.0), B=ours(9_300.0)),
    ]
    comparison = judge(files)
    assert list(comparison.verdicts) == ["worker", "denoise", "client"]
    assert [9.71] == percents(numbers(comparison, "client").mean_reduction)
    assert [(warning.code, warning.detail) for warning in comparison.warnings] == [("RECORDED_BY_A_RUN", "cold cache")]


def test_a_stalled_save_is_a_post_worker_tail(tmp_path: Path) -> None:
    client_s = ((8.47, 6.49, 6.49, 6.63), (6.63, 6.49, 6.49, 6.63))
    worker_s = ((6.287877, 6.147133, 6.145752, 6.285083), (6.286, 6.1466, 6.1462, 6.2859))
    files = []
    for block, (worker, client) in enumerate(zip(worker_s, client_s, strict=True)):
        for slot, arm in enumerate("abba"):
            path = tmp_path / f"r{block}-{slot}{arm}.json"
            timers = {"client_ms": client[slot] * 1000}
            values = {"request_id": path.stem, "commit_hash": arm * 40, "timers": timers}
            files.append(write_dump(path, total_duration_ms=worker[slot] * 1000, **values))
    comparison = judge(files)
    assert comparison.verdict.word is Word.FASTER
    assert comparison.verdicts["client"].word is Word.INCONCLUSIVE
    tails = [warning for warning in comparison.verdicts["client"].warnings if warning.code == "POST_WORKER_TAIL"]
    assert "2.18 s against 0.34 s" in tails[0].detail


def test_json_is_strict(tmp_path: Path) -> None:
    for comparison in (judge(KLEIN), judge(KLEIN[:4]), judge(sorted(KLEIN))):
        values = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
        assert values["schema"] == "fuseproof.compare-perf-abba/1"
        assert values["word"] == comparison.verdict.word.value
        assert [slot["slot"] for slot in values["blocks"][0]["slots"]] == ["A1", "B1", "B2", "A2"]


@pytest.mark.parametrize(
    ("expected", "names"),
    [
        (["r1", "r2"], ["r1-a1", "r1-b1", "r1-b2", "r1-a2", "r2-a1", "r2-b1", "r2-b2", "r2-a2"]),
        (["1", "2"], [f"slot{number}" for number in range(8)]),
        (["01", "02"], [f"0{block}-{slot}/perf" for block in (1, 2) for slot in range(4)]),
    ],
    ids=["a common start", "nothing telling", "folders"],
)
def test_block_names(tmp_path: Path, expected: list[str], names: list[str]) -> None:
    files = [write_dump(tmp_path / f"{name}.json", request_id=name) for name in names]
    assert expected == [block.name for block in read_blocks(files)]
