"""``profile.json`` is read strictly: whatever cannot be is refused in one sentence that names file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError
from fuseproof.harness.profiles.reading import read_profile
from tests.harness.profiles import samples

WHOLE = samples.profile()
CHAINS_BEYOND_THE_STAGE = [samples.chain(119.0, 12.0), samples.chain(1e7, 12.0)]


def refusal(folder: Path, values: dict[str, Any]) -> str:
    with pytest.raises(FuseproofError) as error:
        read_profile(samples.write(folder, values))
    assert error.value.next_step
    return error.value.message


def test_a_file_and_its_folder_are_the_same_profile(tmp_path: Path) -> None:
    path = samples.write(tmp_path, WHOLE)
    profile = read_profile(path)
    assert profile == read_profile(tmp_path)
    assert ("DenoisingStage", 3, 63) == (profile.main_stage.name, profile.main_stage.steps, profile.main_stage.kernels)
    assert WHOLE == profile.raw


@pytest.mark.parametrize(
    ("expected", "written"),
    [("dummy", "dummy"), ("random", "random"), ("trained", "trained"), ("given", "given"), ("random", "embedded")],
)
def test_weights_are_one_of_four_kinds_and_an_older_word(expected: str, written: str, tmp_path: Path) -> None:
    values = {**WHOLE, "request": {**WHOLE["request"], "weights": written}}
    assert expected == read_profile(samples.write(tmp_path, values)).request.weights


@pytest.mark.parametrize(
    ("expected", "path", "value"),
    [
        (
            "has schema 'fuseproof.profile/0', and this version reads 'fuseproof.profile/1'",
            "schema",
            "fuseproof.profile/0",
        ),
        ("it is no profile", "schema", "fuseproof.perf/1"),
        ("has no schema", "schema", ...),
        ("has no chains", "chains", ...),
        ("timed is true", "timed", True),
        ("timed must be true or false", "timed", "no"),
        ("stages is empty", "stages", []),
        ("stages[1].name", "stages.1.name", 7),
        ("stages[0].steps is 51, more than the 50 steps of the request", "stages.0.steps", 51),
        ("stages names a stage twice", "stages.1.name", "DenoisingStage"),
        ("request.backend is 'magic', expected one of native, diffusers, reference", "request.backend", "magic"),
        ("request.steps is 0, expected a whole number of 1 or more", "request.steps", 0),
        ("request.width is 2.5, expected a whole number", "request.width", 2.5),
        ("request.seed is no whole number", "request.seed", -1),
        ("request.flags[0] must be a string", "request.flags", [1]),
        ("device.copy_bandwidth_gb_s is 0", "device.copy_bandwidth_gb_s", 0),
        ("rows[0].class is 'magic'", "rows.0.class", "magic"),
        ("rows[0].stage is 'Elsewhere'", "rows.0.stage", "Elsewhere"),
        ("rows[0].calls is 0", "rows.0.calls", 0),
        ("rows[0].calls is true", "rows.0.calls", True),
        ("rows[0].device_us is -1", "rows.0.device_us", -1),
        ("rows[0].bytes is 1e+300", "rows.0.bytes", 1e300),
        ("rows[0].device_us is inf", "rows.0.device_us", 10**400),
        ("rows[0].site_state is 'maybe'", "rows.0.site_state", "maybe"),
        ("NaN or an infinity", "rows.0.device_us", float("nan")),
        ("NaN or an infinity", "environment.load", float("inf")),
        ("attribution.to_line is 1.5, expected a share", "attribution.to_line", 1.5),
        ("sites[0].keys is a string", "sites.0.keys", "many"),
        ("warnings[0] must be a string", "warnings", [None]),
    ],
)
def test_what_cannot_be_is_refused(expected: str, path: str, value: Any, tmp_path: Path) -> None:
    assert expected in refusal(tmp_path, samples.changed(WHOLE, path, value))


@pytest.mark.parametrize(
    ("expected", "path", "value"),
    [
        ("the rows of 'DenoisingStage' add up to", "rows.0.device_us", 1.0),
        ("the rows of 'DenoisingStage' hold 61 kernels, and the stage says 63", "rows.0.calls", 1),
        ("the steps of 'DenoisingStage' add up to", "steps.0.device_us", 1.0),
        ("the steps of 'DenoisingStage' hold 43 kernels", "steps.0.kernels", 1),
        ("2 steps of 'DenoisingStage' are listed, and the stage says 3", "steps.0", ...),
        ("attribution.device_us is 1.0 us", "attribution.device_us", 1.0),
        ("unattributed kernels add up to", "attribution.unattributed.0.device_us", 1e9),
        ("the chains of 'DenoisingStage' take 10000119.0 us a step", "chains", CHAINS_BEYOND_THE_STAGE),
        ("saving_us_per_step is 1000000000000.0 us", "chains.0.saving_us_per_step", 1e12),
        ("takes 40.0 us a step over a floor of 28.0 us, and", "chains.0.saving_us_per_step", -1e300),
        ("tells only one of", "chains.0.fused_floor_us_per_step", None),
        ("typically takes more than the 40.0 us a step", "chains.0.typical_us_per_step", 41.0),
        ("the steps of 'DenoisingStage' last 10140.0 us, and the stage says 0.0 us", "stages.0.wall_us", 0.0),
        ("the rows with a line add up to 18835.0 us, and attribution.to_line is 0.5", "attribution.to_line", 0.5),
        ("attribution.to_module is only 0.5", "attribution.to_module", 0.5),
        ("attribution.to_site_or_module is only 0.5", "attribution.to_site_or_module", 0.5),
        ("attribution.to_site_or_module leaves 0.0 us", "attribution.to_site_or_module", 1.0),
        ("the rows of site 'norm_modulation' add up to 0.0 us, and the site says 7.0 us", "sites.0.device_us", 7.0),
    ],
)
def test_an_edited_file_is_refused(expected: str, path: str, value: Any, tmp_path: Path) -> None:
    message = refusal(tmp_path, samples.changed(WHOLE, path, value))
    assert expected in message
    assert "the file was edited, or something in it is counted twice" in message


def test_rounding_is_no_edit(tmp_path: Path) -> None:
    device_us = WHOLE["stages"][0]["device_us"]
    read_profile(samples.write(tmp_path, samples.changed(WHOLE, "stages.0.device_us", device_us + 0.4)))


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ("is empty", ""),
        ("it ends too early", json.dumps(WHOLE)[:-200]),
        ("nested too deeply", "[" * 100_000),
        ("holds a list", "[]"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(expected: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(FuseproofError, match=expected):
        read_profile(path)


def test_a_folder_without_a_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FuseproofError, match=r"profile\.json does not exist"):
        read_profile(tmp_path)
