"""A call that was set aside, steps that lie apart, a card in two states: said first, and never a finding."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError
from fuseproof.harness.profiles.build import MARKDOWN, TERMINAL, build_document
from fuseproof.harness.profiles.comparison import ProfileComparison, as_json, compare_profiles
from fuseproof.harness.profiles.comparison_build import build_comparison
from fuseproof.harness.profiles.gain import less_or_more
from fuseproof.harness.profiles.html import render_html
from fuseproof.harness.profiles.profile import Profile
from fuseproof.harness.profiles.reading import profile_of
from fuseproof.harness.profiles.text import render_text
from fuseproof.harness.profiles.timings import Timings
from fuseproof.harness.profiles.writing import render_markdown
from tests.harness.profiles import samples

LATE_US = 9000.0


def read(values: dict[str, Any]) -> Profile:
    return profile_of(values, Path("profile.json"))


def with_steps(values: dict[str, Any], times: list[float]) -> dict[str, Any]:
    """Denoising steps of these times: the last row of GEMM takes what is more."""
    stage = values["stages"][0]
    stage["wall_us"] += sum(times) - stage["device_us"]
    values["rows"][0]["device_us"] += sum(times) - stage["device_us"]
    stage["device_us"] = sum(times)
    for step, device_us in zip(values["steps"], times, strict=True):
        step["wall_us"] += device_us - step["device_us"]
        step["device_us"] = device_us
    values["attribution"] = samples.attribution(values["rows"])
    return values


def late(**more: Any) -> dict[str, Any]:
    """One multiplication of the first block took 9 ms more than its like, as if the process had been set aside."""
    values = samples.profile()
    index = next(i for i, row in enumerate(values["rows"]) if row["operation"] == "aten::mul")
    row = values["rows"][index]
    values["rows"][index] = row | {"device_us": row["device_us"] + LATE_US} | more
    stage = values["stages"][0]
    stage["device_us"] += LATE_US
    stage["wall_us"] += LATE_US
    values["steps"][0]["device_us"] += LATE_US
    values["steps"][0]["wall_us"] += LATE_US
    values["attribution"] = samples.attribution(values["rows"])
    return values


BY_STEP = {"calls_by_step": [2, 2, 2], "device_us_by_step": [40.0 + LATE_US, 40.0, 40.0]}


@pytest.mark.parametrize("told", [{}, BY_STEP, {"typical_us": 120.0}, BY_STEP | {"key": None}], ids=str)
def test_a_late_call_is_no_largest_cost(told: dict[str, Any]) -> None:
    profile = read(late(**told))
    text = render_text(build_document(profile, TERMINAL))
    costs = text.split("Largest costs\n")[1].split("\n\n")[0].splitlines()
    assert "transformer_blocks.*.attn.to_q" in costs[0]
    late_cost = next(line for line in costs if "norm1: elementwise" in line)
    assert "disturbed: typically 0.160 ms a step, 3.160 ms a step" in late_cost
    first = text.split("\n\n")[1]
    assert first.startswith("Warnings\n")
    assert "DenoisingStage: 47.8% of its device time was taken by single calls" in first


def test_rows_that_are_alike_are_not_disturbed() -> None:
    assert not any(usual.is_disturbed for usual in read(samples.profile()).usual.values())


@pytest.mark.parametrize(
    ("expected", "told"),
    [
        ("tells of 2 steps, and its stage has 3", {"calls_by_step": [3, 3], "device_us_by_step": [1.0, 1.0]}),
        ("hold 5 calls, and the row says 6", BY_STEP | {"calls_by_step": [2, 2, 1]}),
        ("add up to 3.0 us", BY_STEP | {"device_us_by_step": [1.0, 1.0, 1.0]}),
        ("typically takes 99999.0 us", {"typical_us": 99999.0}),
        ("device_us_by_step.0 is -1", BY_STEP | {"device_us_by_step": [-1.0, 1.0, 1.0]}),
    ],
)
def test_what_a_row_tells_of_its_steps_must_add_up(expected: str, told: dict[str, Any]) -> None:
    with pytest.raises(FuseproofError, match=re.escape(expected)):
        read(late(**told))


def compared(before: list[float], after: list[float], *, bandwidth_gb_s: float = 4000.0) -> ProfileComparison:
    one = with_steps(samples.profile(), before)
    other = with_steps(samples.profile(is_fused=True), after)
    return compare_profiles(read(one), read(samples.changed(other, "device.copy_bandwidth_gb_s", bandwidth_gb_s)))


def text_of(comparison: ProfileComparison, timings: Timings | None = None) -> str:
    return " ".join(render_text(build_comparison(comparison, timings, TERMINAL)).split())


def test_the_prediction_carries_the_scatter_of_the_steps() -> None:
    found = compared([3280.0, 3300.0, 3260.0], [3112.0, 3102.0, 3122.0])
    assert found.prediction.can_tell
    assert (50 * (3260 - 3122), 50 * (3300 - 3102)) == pytest.approx(
        (found.prediction.low_us, found.prediction.high_us)
    )
    text = text_of(found)
    assert "8.4 ms less device time (6.9 to 9.9 ms less by the scatter of the steps)" in text
    assert "DenoisingStage before 3 3.280 3.260 3.300 DenoisingStage after 3 3.112 3.102 3.122" in text


@pytest.mark.parametrize(
    ("doubt", "before", "after"),
    [
        ("further apart than the two sides do", [3280.0, 3480.0, 3080.0], [3112.0, 3312.0, 2912.0]),
        (
            "gemm, whose launches are the same on both sides, moved by 0.500 ms",
            [3280.0, 3280.0, 3280.0],
            [3612.0, 3612.0, 3612.0],
        ),
    ],
)
def test_two_noisy_profiles_cannot_tell(doubt: str, before: list[float], after: list[float]) -> None:
    found = compared(before, after)
    text = text_of(found, Timings("a and b", (1, 1), (7000.0, 6000.0), None, None))
    assert not found.prediction.can_tell
    assert doubt in text
    assert "these profiles cannot tell" in text
    assert "1000.0 ms less worker E2E, with nothing predicted to hold it against" in text
    assert "Predicted for the request" not in text
    assert json.loads(json.dumps(as_json(found), allow_nan=False))["predicted"]["can_tell"] is False


def test_measured_and_predicted_are_held_together_in_one_way() -> None:
    found = compared([3280.0, 3300.0, 3260.0], [3112.0, 3102.0, 3122.0])
    text = text_of(found, Timings("a and b", (1, 1), (1000.0, 900.0), None, None))
    low, high = (us / 1e3 for us in found.prediction.range_us)
    assert f"{low / 10:.2f}% to {high / 10:.2f}%" in text
    assert (
        f"{100 - high:.1f} ms outside of what the profiles predict (6.9 to {high:.1f} ms less), on the side of less"
        in (text)
    )


def test_words_of_more_and_less_have_no_sign() -> None:
    assert "8.2 to 8.6 ms less" == less_or_more(8200.0, 8600.0)
    assert "2.0 to 3.0 ms more" == less_or_more(-3000.0, -2000.0)
    assert "anything from 3.0 ms more to 1.0 ms less" == less_or_more(-3000.0, 1000.0)


def test_two_states_of_one_machine_are_told_first() -> None:
    steps = [3280.0] * 3, [3112.0] * 3
    text = render_text(build_comparison(compared(*steps, bandwidth_gb_s=2000.0), None, TERMINAL))
    assert "copy bandwidth is 4000.00 GB/s before and 2000.00 GB/s after, 100 % apart" in text.split("\n\n")[1]
    assert not any("bandwidth" in one for one in compared(*steps, bandwidth_gb_s=3700.0).warnings())
    device = as_json(compared(*steps, bandwidth_gb_s=2000.0))["device"]
    assert (4000.0, 2000.0) == tuple(device[side]["copy_bandwidth_gb_s"] for side in ("before", "after"))


def test_flags_can_be_pasted() -> None:
    values = samples.changed(samples.profile(), "request.flags", ["--prompt=a red panda", "--width=128"])
    assert "'--prompt=a red panda' --width=128" in text_of(compare_profiles(read(values), read(values)))


def test_below_the_floor_is_a_cache() -> None:
    assert "Below 1×" not in render_text(build_document(read(samples.profile()), TERMINAL))
    values = samples.changed(samples.profile(), "device.copy_bandwidth_gb_s", 12.345)
    text = render_text(build_document(read(values), TERMINAL))
    assert "over 12.3 GB/s" in text
    assert "Below 1×: its data lay in a cache" in text


def test_a_pass_and_a_step_are_never_in_one_table() -> None:
    values = samples.profile()
    values["chains"].append(samples.chain(500.0, 400.0, stage="DecodingStage", calls_per_step=0.5))
    text = render_text(build_document(read(values), TERMINAL)).split("Fusable chains\n")[1]
    step, whole = text.split("DecodingStage, of its one pass:\n")
    assert "DenoisingStage, of one step of 50:" in step
    assert step.splitlines()[1].split("  ")[1:3] == ["saves µs a step", "takes µs a step"]
    assert whole.splitlines()[1].split()[0] == "400.0"
    assert "A fraction of times a step" in whole
    assert "an upper bound for one kernel in their place, not a promise" in whole


def test_chains_without_a_saving_say_why_once() -> None:
    values = samples.changed(samples.profile(), "device.no_saving_reason", "a CPU's time is arithmetic")
    for chain in values["chains"]:
        chain |= {"saving_us_per_step": None, "fused_floor_us_per_step": None}
    text = render_text(build_document(read(values), TERMINAL))
    assert 1 == text.count("No saving is given: a CPU's time is arithmetic.")
    assert "saves" not in text


def test_every_stage_is_in_the_terminal_and_an_empty_one_has_no_table() -> None:
    values = samples.profile()
    values["stages"].append(samples.stage([], "InputValidationStage", 1, 1))
    profile = read(values)
    assert "DecodingStage: by class" in render_text(build_document(profile, TERMINAL))
    sections = [section.title for section in build_document(profile, MARKDOWN).sections]
    assert "InputValidationStage" in sections
    assert "InputValidationStage: by class" not in sections
    assert 1 == render_markdown(profile).count("Floor: the bytes")


def test_steps_of_a_clip_in_chunks_are_explained() -> None:
    values = samples.profile()
    values["request"] |= {"frames": 25, "steps": 25}
    assert "3 of 50 steps (25 in each of 2 chunks)" in render_text(build_document(read(values), TERMINAL))


def test_one_reason_of_many_sites_is_told_once() -> None:
    values = samples.profile()
    reason = "declined: the model is on cpu"
    values["sites"] = [values["sites"][0] | {"site": f"site_{index}", "reason": reason} for index in range(5)]
    text = render_text(build_document(read(values), TERMINAL)).split("\nSites\n")[1]
    assert 1 == text.count(reason)
    assert 6 == text.count("reason 1")


@pytest.mark.parametrize("width", [100, 120])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    values = late(module="transformer_blocks.0." + 4 * "a_module_with_a_long_name.")
    text = render_text(build_document(read(values), TERMINAL), width)
    assert width >= max(map(len, text.splitlines()))


def test_the_flame_view_speaks_of_what_was_profiled_in_the_words_of_its_legend() -> None:
    page = render_html(read(samples.changed(samples.profile(), "rows.0.class", "cat")))
    assert "of the profiled stages" in page
    assert "of the request, " not in page
    assert "concatenation; void gemm_kernel" in page
