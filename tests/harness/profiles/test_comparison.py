"""Before against after: the pull request's table, refused inequality, and predicted against measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError
from fuseproof.harness.profiles.comparison import ProfileComparison, as_json, compare_profiles
from fuseproof.harness.profiles.comparison_build import TERMINAL, build_comparison
from fuseproof.harness.profiles.reading import profile_of
from fuseproof.harness.profiles.text import render_text
from fuseproof.harness.profiles.timings import Timings, read_timings
from tests.harness.profiles import samples


def compared(before: dict[str, Any] | None = None, after: dict[str, Any] | None = None) -> ProfileComparison:
    one = profile_of(before or samples.profile(), Path("before.json"))
    return compare_profiles(one, profile_of(after or samples.profile(is_fused=True), Path("after.json")))


def dump(folder: Path, name: str, worker_ms: float, **more: Any) -> Path:
    config = {"width": 1024, "height": 1024, "num_inference_steps": 50, "guidance_scale": 4.5, "fastpaths": "off"}
    values = {
        "total_duration_ms": worker_ms,
        "steps": [{"name": "DenoisingStage", "duration_ms": worker_ms - 10}],
        "denoise_steps_ms": [],
        "config": {**config, **more.pop("config", {})},
        **more,
    }
    path = folder / name
    path.write_text(json.dumps(values))
    return path


def test_the_table_of_a_pull_request() -> None:
    text = " ".join(render_text(build_comparison(compared(), None, TERMINAL)).split())
    assert "DenoisingStage 21 → 13 +4 3.280 → 3.112 −5.12 %" in text
    assert "norm_modulation 0 → 4 0 → 200" in text
    assert "elementwise 8 → 0 0.160 → 0.000 +0.160" in text
    assert "transformer_blocks.* 20 → 12 3.080 → 2.912 +0.168" in text
    assert "site norm_modulation 0 → 4 0.000 → 0.112 −0.112" in text
    assert "no timed pair was given (--timings)" in text


def test_the_differences_of_classes_and_places_are_the_whole() -> None:
    stage = compared().main
    for rows in (stage.classes, stage.places, stage.blocks):
        assert stage.step.saved_us == pytest.approx(sum(row.saved_us for row in rows))
        assert stage.step.saved_kernels == sum(row.saved_kernels for row in rows)


def test_launches_count_only_where_the_device_waited() -> None:
    found = compared()
    assert 50 * 168.0 == pytest.approx(found.device_gain_us)
    assert 50 * 100.0 * 8 / 21 == pytest.approx(found.launch_gain_us)
    busy = samples.profile()
    for one in (busy["stages"][0], *busy["steps"]):
        one["wall_us"] = 0.9 * one["device_us"]
    assert 0.0 == compared(busy).launch_gain_us


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("request.width", 512),
        ("request.steps", 51),
        ("request.model", "another"),
        ("request.dtype", "float32"),
        ("request.guidance", 1.0),
        ("request.weights", "given"),
        ("device.name", "NVIDIA H100"),
    ],
)
def test_unequal_requests_are_refused(path: str, value: Any) -> None:
    with pytest.raises(FuseproofError, match=r"unequal|two devices"):
        compared(after=samples.changed(samples.profile(is_fused=True), path, value))


def test_other_prompts_are_other_work_where_both_record_them() -> None:
    one = samples.changed(samples.profile(), "request.flags", ["--prompt=a panda"])
    other = samples.changed(samples.profile(is_fused=True), "request.flags", ["--prompt=another", "--fastpaths=auto"])
    with pytest.raises(FuseproofError, match="--prompt is a panda before and another after"):
        compared(one, other)
    compared(samples.changed(one, "request.flags", []), other)


def test_other_numbers_of_profiled_steps_are_compared_by_step() -> None:
    one = samples.profile(is_fused=True)
    one["stages"][0] |= {"steps": 1, **{name: one["stages"][0][name] / 3 for name in ("wall_us", "device_us")}}
    one["stages"][0]["kernels"] //= 3
    one["steps"] = one["steps"][:1]
    for row in (row for row in one["rows"] if row["stage"] == "DenoisingStage"):
        row["calls"] //= 3
        row["device_us"] /= 3
    one["sites"][0]["device_us"] /= 3
    one["attribution"] = samples.attribution(one["rows"])
    assert (13, 3112.0) == (compared(after=one).main.step.after_kernels, compared(after=one).main.step.after_us)


def test_json_is_strict_and_whole() -> None:
    values = json.loads(json.dumps(as_json(compared()), allow_nan=False))
    assert "fuseproof.profile-comparison/1" == values["schema"]
    assert (21, 13, 4) == (
        values["stages"][0]["step"]["before_kernels"],
        values["stages"][0]["step"]["after_kernels"],
        values["stages"][0]["new_fused_kernels"],
    )


def timed(folder: Path, before: dict[str, Any], after: dict[str, Any]) -> Timings:
    paths = [dump(folder, "a.json", 7000.0, **before), dump(folder, "b.json", 6990.0, **after)]
    return read_timings(paths, compared())


AFTER: dict[str, Any] = {"config": {"fastpaths": "auto"}}


def test_a_timed_pair_stands_beside_what_was_predicted(tmp_path: Path) -> None:
    timings = timed(tmp_path, {}, AFTER)
    assert ((7000.0, 6990.0), (6990.0, 6980.0), None) == (timings.worker_ms, timings.denoise_ms, timings.word)
    text = render_text(build_comparison(compared(), timings, TERMINAL))
    assert "10.0 ms less worker E2E, which lies within what the profiles predict" in text
    assert "single runs, a description and no verdict" in text


@pytest.mark.parametrize(
    ("expected", "before", "after"),
    [
        ("fastpaths is auto", AFTER, AFTER),
        ("width is 512", {"config": {"width": 512}}, AFTER),
        ("profiler", {"profiled": True}, AFTER),
        ("it ran on NVIDIA H100", {}, AFTER | {"environment": {"device_name": "NVIDIA H100"}}),
        ("unequal work", {"meta": {"prompt": "a"}}, AFTER | {"meta": {"prompt": "b"}}),
    ],
)
def test_times_of_other_runs_are_refused(
    expected: str, before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(FuseproofError, match=expected):
        timed(tmp_path, before, after)


def test_one_dump_is_no_pair(tmp_path: Path) -> None:
    with pytest.raises(FuseproofError, match="expected a campaign's folder, or two perf dumps"):
        read_timings([dump(tmp_path, "a.json", 1.0)], compared())
