"""The guard over kernels' times: what it calls slower, what it never does, and which stored results it refuses."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError
from fuseproof.harness.kernel_times.guard import Standing, judge, needing_second_look
from fuseproof.harness.kernel_times.record import Record, differences, from_document, is_record, read_record
from fuseproof.harness.kernel_times.text import lines_of, to_document

STEADY = (10.0, 10.1, 10.05, 9.95, 10.02)


def time(rounds: tuple[float, ...]) -> dict[str, Any]:
    ordered = sorted(rounds)
    return {
        "median_us": ordered[len(ordered) // 2],
        "minimum_us": ordered[0],
        "maximum_us": ordered[-1],
        "samples": len(rounds),
        "rounds_us": list(rounds),
    }


def row(fused: tuple[float, ...] | None, eager: float = 3.0, bits: str = "equal", **changes: Any) -> dict[str, Any]:
    """A call whose eager chain takes ``eager`` times as long as the steady fused form does."""
    return {
        "site": "gelu_tanh",
        "kernel": "gelu_tanh",
        "workload": "1024x1024",
        "shapes": "1x8",
        "bits": bits,
        "reason": None if bits == "equal" else "not bit-exact: 3% of the values differ",
        "rotation": 2,
        "traffic_bytes": 64,
        "source_sha256": "0" * 64,
        "eager": None if fused is None else time(tuple(eager * one for one in STEADY)),
        "fused": None if fused is None else time(fused),
        "floor": None,
        "speedup": None,
        "times_floor": None,
    } | changes


def document(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "schema": "fuseproof.fastpaths-bench/2",
        "card": {"name": "NVIDIA H200", "capability": "9.0", "power_limit_w": 700.0, "driver": "580.159"},
        "versions": {"torch": "2.11.0", "triton": "3.6.0", "diffusers": "0.42.1", "cuda": "13.0"},
        "seed": 0,
        "replays": 5,
        "rounds": 5,
        "selection": {"model": None, "sites": [], "shapes": [], "captured_sha256": None, "own_sha256": None},
        "calls": list(rows),
    } | changes


def record(*rows: dict[str, Any], **changes: Any) -> Record:
    return from_document(document(*rows, **changes))


def standing_of(then: dict[str, Any], now: dict[str, Any], again: dict[str, Any] | None = None) -> Standing:
    second = None if again is None else record(again).by_key()
    (judged,) = judge(record(then), record(now), second)
    return judged.standing


def scaled(factor: float) -> tuple[float, ...]:
    return tuple(factor * one for one in STEADY)


@pytest.mark.parametrize(
    ("expected", "fused", "eager"),
    [
        pytest.param(Standing.SLOWER, scaled(1.05), 3.0, id="beyond both spreads"),
        pytest.param(Standing.SAME, scaled(1.018), 3.0, id="beyond them, by less than 2 %"),
        pytest.param(Standing.SAME, (10.09, 11, 11, 11, 11), 3.0, id="one round inside the other spread"),
        pytest.param(Standing.SAME, (10.11, 10.11, 10.11, 10.11, 10.11), 3.0, id="just beyond the spread"),
        pytest.param(Standing.CARD, scaled(1.05), 3.15, id="eager has slowed with it"),
        pytest.param(Standing.FASTER, scaled(0.9), 3.0, id="faster"),
        pytest.param(Standing.CARD, scaled(0.9), 2.7, id="eager has become faster with it"),
        pytest.param(Standing.SAME, STEADY, 3.0, id="the same times"),
        pytest.param(Standing.SAME, STEADY, 6.0, id="eager alone has slowed"),
    ],
)
def test_the_rule(expected: Standing, fused: tuple[float, ...], eager: float) -> None:
    assert expected is standing_of(row(STEADY), row(fused, eager))


@pytest.mark.parametrize(
    ("expected", "again"),
    [
        (Standing.SLOWER, row(scaled(1.06))),
        (Standing.SAME, row(STEADY)),
        (Standing.SAME, row(scaled(0.9))),
        (Standing.CARD, row(scaled(1.06), 3.2)),
        (Standing.DIFFERS, row(None, bits="differs")),
    ],
)
def test_a_second_look_decides(expected: Standing, again: dict[str, Any]) -> None:
    assert expected is standing_of(row(STEADY), row(scaled(1.05)), again)


def test_only_slower_rows_need_a_second_look() -> None:
    then = record(row(STEADY), row(STEADY, shapes="2x8"))
    now = record(row(scaled(1.2)), row(scaled(0.8), shapes="2x8"))
    assert [("gelu_tanh", "gelu_tanh", "1024x1024", "1x8")] == needing_second_look(judge(then, now))


def test_what_a_process_keeps_is_seldom_a_regression() -> None:
    """Rounds of 0.2 % scatter in processes that each run 0.5 % apart: the second look is another process."""
    numbers = random.Random(7)

    def process() -> dict[str, Any]:
        offsets = [numbers.gauss(1, 0.005) for _ in range(2)]
        eager, fused = (time(tuple(one * numbers.gauss(10, 0.02) for _ in range(5))) for one in offsets)
        return {**row(STEADY), "eager": eager, "fused": fused}

    slower = sum(Standing.SLOWER is standing_of(process(), process(), process()) for _ in range(1000))
    assert 4 >= slower


def test_noise_is_hardly_ever_a_regression_and_a_slow_kernel_always_is() -> None:
    """Rounds of 3 % scatter: unchanged rows pass, but for one in thousands; 30 % more time is always seen."""
    numbers = random.Random(7)

    def rounds(middle: float) -> tuple[float, ...]:
        return tuple(numbers.gauss(middle, 0.03 * middle) for _ in range(5))

    def noisy(middle: float) -> dict[str, Any]:
        one = row(rounds(middle))
        return {**one, "eager": time(rounds(30.0))}

    def is_slower(middle: float) -> bool:
        return Standing.SLOWER is standing_of(noisy(10.0), noisy(middle), noisy(middle))

    assert 2 >= sum(is_slower(10.0) for _ in range(1000))
    assert 198 <= sum(is_slower(13.0) for _ in range(200))


@pytest.mark.parametrize(
    ("expected", "then", "now"),
    [
        (Standing.DIFFERS, row(STEADY), row(None, bits="differs")),
        (Standing.DIFFERS, row(None, bits="declines"), row(None, bits="differs")),
        (Standing.LOST, row(STEADY), row(None, bits="declines", reason="x is on the CPU")),
        (Standing.NEW, row(None, bits="declines"), row(STEADY)),
    ],
)
def test_rows_without_a_time(expected: Standing, then: dict[str, Any], now: dict[str, Any]) -> None:
    assert expected is standing_of(then, now)


def test_a_row_that_is_not_called_any_more_is_lost_unless_less_was_asked_for() -> None:
    then = record(row(STEADY), row(STEADY, shapes="2x8"))
    now = document(row(STEADY))
    assert [Standing.SAME, Standing.LOST] == [one.standing for one in judge(then, from_document(now))]
    now["selection"]["sites"] = ["gelu_tanh"]
    assert [Standing.SAME, Standing.NOT_MEASURED] == [one.standing for one in judge(then, from_document(now))]


def test_what_a_user_reads() -> None:
    then = record(row(STEADY), row(STEADY, shapes="2x8"))
    now = record(row(scaled(1.05), source_sha256="1" * 64), row(None, bits="differs", shapes="2x8"))
    judged = judge(then, now)
    text = "\n".join(lines_of(judged, "old.json"))
    assert "differs  gelu_tanh, 1024x1024, 2x8: not bit-exact: 3% of the values differ; no time is given" in text
    assert "10.02 us [9.95, 10.10] -> 10.52 us [10.45, 10.61] (+5.0%)" in text
    assert "its source has changed" in text
    assert "1 slower, 1 differs" in text
    found = to_document(judged, "old.json")
    assert (False, ["slower", "differs"]) == (found["passed"], [one["standing"] for one in found["rows"]])
    assert to_document(judge(then, then), "old.json")["passed"]


@pytest.mark.parametrize(
    ("expected", "place", "value"),
    [
        (["card name: NVIDIA H200 in the baseline, NVIDIA H100 here"], ("card", "name"), "NVIDIA H100"),
        (["card power_limit_w: 700.0 in the baseline, 500.0 here"], ("card", "power_limit_w"), 500.0),
        (["card driver: 580.159 in the baseline, unknown here"], ("card", "driver"), None),
        (["torch: 2.11.0 in the baseline, 2.12.0 here"], ("versions", "torch"), "2.12.0"),
        (["triton: 3.6.0 in the baseline, 3.7.1 here"], ("versions", "triton"), "3.7.1"),
        ([], ("versions", "diffusers"), "0.43.0"),
    ],
)
def test_what_makes_two_results_no_comparison(expected: list[str], place: tuple[str, str], value: Any) -> None:
    here = copy.deepcopy(document())
    here[place[0]][place[1]] = value
    assert expected == differences(document(), here)


@pytest.mark.parametrize("name", ["seed", "replays", "rounds"])
def test_another_method_is_no_comparison(name: str) -> None:
    assert [f"{name}: {document()[name]} in the baseline, 9 here"] == differences(document(), document(**{name: 9}))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("must be made anew", json.dumps({"schema": "fuseproof.fastpaths-bench/1"})),
        ("its schema is None", "{}"),
        ("its schema is None", "[]"),
        ("holds NaN", json.dumps(document(row((float("nan"), *STEADY))))),
        ("two rows of gelu_tanh", json.dumps(document(row(STEADY), row(STEADY)))),
        ("fused.rounds_us", json.dumps(document(row((1.0,))))),
        ("fused.minimum_us", json.dumps(document(row((0.0, *STEADY[1:]))))),
        ("fused.minimum_us", json.dumps(document(row((-1.0, *STEADY[1:]))))),
        ("fused.median_us", json.dumps(document(row(STEADY) | {"fused": time(STEADY) | {"median_us": 5e-324}}))),
        ("eager.median_us", json.dumps(document(row(STEADY) | {"eager": time(STEADY) | {"median_us": 1e308}}))),
        ("do not fit rounds", json.dumps(document(row(STEADY) | {"fused": time(STEADY) | {"median_us": 12.0}}))),
        ("do not fit rounds", json.dumps(document(row(STEADY) | {"fused": time(STEADY) | {"maximum_us": 10.0}}))),
        ("5 rounds, and a row has 3", json.dumps(document(row(STEADY[:3])))),
        ("calls.0.bits", json.dumps(document(row(STEADY, bits="nearly")))),
        ("bits are 'differs' has no time", json.dumps(document(row(STEADY, bits="differs")))),
        ("calls.0.speed", json.dumps(document(row(STEADY, speed=2)))),
        ("holds no times", "{"),
        ("holds no times", "[" * 100_000),
    ],
)
def test_what_is_no_stored_result_is_one_sentence(words: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FuseproofError, match=r"old\.json") as caught:
        read_record(path)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_a_stored_result_is_read_back_and_known(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document(row(STEADY))), encoding="utf-8")
    assert record(row(STEADY)) == read_record(path)
    assert is_record(path)
    path.write_text('{"schema": "fuseproof.fastpaths-verify/1"}', encoding="utf-8")
    assert not is_record(path)
    with pytest.raises(FuseproofError, match="is no file"):
        read_record(tmp_path)
