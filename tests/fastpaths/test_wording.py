import pytest
import torch

from fuseproof.fastpaths.bits import BitDifference
from fuseproof.fastpaths.numerics import numerics_of
from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.wording import LONGEST_TEXT, difference_text, key_text, plain_text, ulp_text


@pytest.mark.parametrize(
    ("expected", "key"),
    [
        ("norm", "norm"),
        ("norm, 1x7x256 bfloat16, 1e-06", ("norm", signature(torch.ones(1, 7, 256).bfloat16()), 1e-06)),
        ("norm, scalar float32, None", ("norm", (signature(torch.tensor(1.0)), None))),
        ("0, 1, 2, 3, 4, 5 and 3 more", tuple(range(9))),
        ("table, 2x3, bfloat16", ("table", torch.Size([2, 3]), torch.bfloat16)),
        ("qkv, 2x3 float32", ("qkv", signature(torch.ones(2, 3)), numerics_of(torch.device("cpu")))),
    ],
)
def test_a_key_is_told_in_shapes(expected, key):
    assert expected == key_text(key)


@pytest.mark.parametrize(
    ("expected", "ulp"), [("at most 0 ulp", 0), ("at most 1048576 ulp", 2**20), ("more than a million ulp", 2**20 + 1)]
)
def test_a_distance_that_is_no_rounding_is_no_number(expected, ulp):
    assert expected == ulp_text(ulp)


@pytest.mark.parametrize(
    ("expected", "text"), [("two lines", "two\n  lines"), ("\\x1b[31m", "\x1b[31m"), ("\\udcff é", "\udcff é")]
)
def test_what_others_wrote_is_one_printable_line(expected, text):
    assert expected == plain_text(text)
    assert LONGEST_TEXT == len(plain_text("x" * 1000))


@pytest.mark.parametrize(
    ("expected", "difference"),
    [
        (
            "45.5260% of the values differ, by at most 16384 ulp (where eager has 3.1e-06) and 0.0039 in value; "
            "relative error 0.0012",
            BitDifference(0.45526, 16384, 3.1e-6, 0.0039, 0.0012),
        ),
        (
            "100.0000% of the values differ, by at most 8 ulp and no finite number in value; "
            "relative error no finite number",
            BitDifference(1.0, 8, 1.0, float("inf"), float("nan")),
        ),
    ],
    ids=["near 0", "not finite"],
)
def test_a_difference_is_told_in_ulp_in_value_and_relatively(expected, difference):
    assert expected == difference_text(difference)
