"""Which steps run two branches: tables."""

import subprocess
import sys

import pytest

from fuseproof.errors import UsageError
from fuseproof.pipelines import guidance_schedule
from fuseproof.pipelines.guidance_schedule import skipped_steps, unconditional_branches, warmup_steps
from fuseproof.pipelines.requests import QUALITIES

GUIDED = 4.5


@pytest.mark.parametrize(
    ("expected", "steps", "quality"),
    [
        (tuple(range(40, 50)), 50, "high"),
        ((7,), 8, "high"),
        ((4,), 5, "high"),
        ((), 4, "high"),
        ((), 1, "high"),
        (tuple(range(800, 1000)), 1000, "high"),
        ((), 50, "extra-high"),
        ((), 50, "lossless"),
    ],
    ids=["50", "8", "5-whole-number", "4-too-few", "1", "1000", "extra-high", "lossless"],
)
def test_skipped_steps(expected, steps, quality):
    assert expected == skipped_steps(steps, GUIDED, quality)


@pytest.mark.parametrize("scale", [0.0, 1.0], ids=["zero", "one"])
def test_without_guidance_there_is_nothing_to_skip(scale):
    assert () == skipped_steps(50, scale, "high")


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 30, 50, 999])
def test_the_first_step_is_always_guided_and_skipped_steps_are_the_last(steps):
    skipped = skipped_steps(steps, GUIDED, "high")
    assert 0 not in skipped
    assert tuple(range(steps))[steps - len(skipped) :] == skipped
    assert steps // 5 == len(skipped)


def test_every_quality_has_a_share_and_only_high_skips():
    assert set(QUALITIES) == set(guidance_schedule.SKIPPED_SHARE)
    assert ["high"] == [quality for quality in QUALITIES if skipped_steps(50, GUIDED, quality)]


@pytest.mark.parametrize(
    ("expected", "steps", "request_steps", "scale", "quality"),
    [
        (5, 1, 50, GUIDED, "high"),
        (8, 8, 50, GUIDED, "high"),
        (60, 60, 50, GUIDED, "high"),
        (5, 1, 5, GUIDED, "high"),
        (1, 1, 4, GUIDED, "high"),
        (1, 1, 50, 1.0, "high"),
        (1, 1, 50, GUIDED, "lossless"),
    ],
    ids=[
        "lengthened",
        "long-enough",
        "longer-than-the-request",
        "whole-request",
        "nothing-skipped",
        "unguided",
        "lossless",
    ],
)
def test_steps_of_a_warm_up(expected, steps, request_steps, scale, quality):
    assert expected == warmup_steps(steps, request_steps, scale, quality)


def test_an_unknown_quality_is_no_quality():
    with pytest.raises(UsageError, match="Quality 'best' does not exist"):
        skipped_steps(50, GUIDED, "best")
    assert () == skipped_steps(50, GUIDED, "exact"), "the alias of lossless"


@pytest.mark.parametrize(
    ("expected", "branch", "quality"),
    [
        ("uuuu.", "u", "high"),
        ("uuuuu", "u", "lossless"),
        (".....", None, "lossless"),
    ],
    ids=["high", "lossless", "unguided"],
)
def test_the_branch_of_each_step(expected, branch, quality):
    branches = unconditional_branches(branch, 5, GUIDED, quality)
    assert expected == "".join(found or "." for found in branches)


def test_the_module_loads_no_torch():
    code = "import sys, fuseproof.pipelines.guidance_schedule as g; sys.exit('torch' in sys.modules or not g)"
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
