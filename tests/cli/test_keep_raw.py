"""``--keep-raw``: the arrays whose hashes the perf dump holds, kept beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fuseproof.cli.abba_options import AbbaOptions
from fuseproof.cli.abba_plan import build_plan
from fuseproof.cli.generate_options import GenerateOptions
from fuseproof.errors import UsageError
from fuseproof.harness.media.files import array_sha256
from tests.cli.desk import SMALL, Desk

PROMPTS = ("--prompt=a red panda", "--prompt=a blue bird")


def test_arrays_have_the_hashes_of_the_dump(desk: Desk) -> None:
    assert 0 == desk.run(*PROMPTS, *SMALL, "--perf-dump-path=p.json", "--keep-raw")
    outputs = desk.dump()["outputs"]
    arrays = [np.load(desk.folder / "raw" / f"{Path(output['path']).stem}.npy") for output in outputs]
    assert [output["raw_sha256"] for output in outputs] == [array_sha256(array) for array in arrays]
    assert [(48, 64, 3), np.float32] == [arrays[0].shape, arrays[0].dtype]
    assert 2 == len(list((desk.folder / "raw").iterdir()))


def test_nothing_is_kept_unasked(desk: Desk) -> None:
    assert 0 == desk.run(*PROMPTS, *SMALL, "--perf-dump-path=p.json")
    assert not (desk.folder / "raw").exists()


def test_file_in_the_place_of_the_folder_is_found_before_loading(desk: Desk) -> None:
    (desk.folder / "raw").write_text("x", encoding="utf-8")
    assert 2 == desk.run(*PROMPTS, *SMALL, "--perf-dump-path=p.json", "--keep-raw")
    assert "--keep-raw raw cannot be a folder" in desk.err
    assert [] == desk.session.requests


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        pytest.param({}, "beside a perf dump", id="no dump"),
        pytest.param({"perf_dump_path": "p.json", "save_output": False}, "none are written", id="no image"),
    ],
)
def test_what_it_needs(flags: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        GenerateOptions(prompt=("x",), keep_raw=True, **flags)  # type: ignore[arg-type]


def test_campaign_hands_it_to_every_slot() -> None:
    plan = build_plan(AbbaOptions(keep_raw=True, flags="--prompt x"))
    assert ["--prompt x --keep-raw"] == [cell.flags for cell in plan.cells]


def test_command_arms_keep_what_they_like() -> None:
    options = AbbaOptions(keep_raw=True, baseline_command="a {perf_dump}", candidate_command="b {perf_dump}")
    with pytest.raises(UsageError, match="no effect when both arms are commands"):
        build_plan(options)
