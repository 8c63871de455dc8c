"""Where the flags of two arms differ, and what they alone rule out, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuseproof.cli.abba_arms import parsed_flags
from fuseproof.cli.diverge_flags import differences, effective_config, refuse_other_requests
from fuseproof.cli.generate_options import GenerateOptions
from fuseproof.errors import UsageError

WAN = "--model-path embedded:wan2.2-ti2v-5b"


def config(words: str) -> dict[str, Any]:
    options = parsed_flags([*words.split(), "--prompt=panda"] if "--prompt" not in words else words.split())
    assert isinstance(options, GenerateOptions), options
    return effective_config(options, {})


def told(one: str, other: str) -> list[str]:
    return [str(setting) for setting in differences(config(one), config(other))]


@pytest.mark.parametrize(
    ("expected", "one", "other"),
    [
        (["--seed 42 against 43"], "", "--seed 43"),
        (["--guidance-scale 4.5 against 4.6"], "", "--guidance-scale 4.6"),
        (["--attention-backend native against _native_math"], "", "--attention-backend _native_math"),
        ([], "--seed 42", "--attention-backend sdpa"),
        (["--fastpaths off against auto", "--gate enforce against off"], "--fastpaths off", "--gate off"),
        ([], "--output-path one", "--output-path other"),
    ],
)  # fmt: skip
def test_flags_are_compared_with_their_defaults(expected: list[str], one: str, other: str) -> None:
    assert sorted(expected) == sorted(told(one, other))


@pytest.mark.parametrize(
    ("expected", "one", "other"),
    [
        ("the baseline runs 8 steps and the candidate 5,", "", "--num-inference-steps 5"),
        ("the arms have --height 256 against 64, so", "", "--height 64"),
        ("the arms have --num-frames 9 against 5, so", WAN, f"{WAN} --num-frames 5"),
        ("the arms have --dtype float32 against bfloat16, so", "--dtype float32", "--dtype bfloat16"),
        ("the baseline draws cat and the candidate dog, and diverge follows one", "--prompt=cat", "--prompt=dog"),
    ],
)
def test_other_work_is_refused_by_the_flags_alone(expected: str, one: str, other: str) -> None:
    with pytest.raises(UsageError, match=expected):
        refuse_other_requests(config(one), config(other))


@pytest.mark.parametrize("other", ["--num-inference-steps 8", "--seed 43", "--guidance-scale 1", "--dtype bfloat16"])
def test_what_may_be_compared_is_not_refused(other: str) -> None:
    refuse_other_requests(config(""), config(other))


def test_a_folder_of_no_family_is_compared_by_its_flags(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "QwenImagePipeline"}')
    model = f"--model-path {tmp_path} --num-inference-steps"
    with pytest.raises(UsageError, match="the baseline runs 2 steps and the candidate 3,"):
        refuse_other_requests(config(f"{model} 2"), config(f"{model} 3"))
