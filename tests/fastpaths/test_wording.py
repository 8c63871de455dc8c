import pytest
import torch

from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.wording import LONGEST_TEXT, key_text, plain_text, ulp_text


@pytest.mark.parametrize(
    ("expected", "key"),
    [
        ("norm", "norm"),
        ("norm, 1x7x256 bfloat16, 1e-06", ("norm", signature(torch.ones(1, 7, 256).bfloat16()), 1e-06)),
        ("norm, scalar float32, None", ("norm", (signature(torch.tensor(1.0)), None))),
        ("0, 1, 2, 3, 4, 5 and 3 more", tuple(range(9))),
        ("table, 2x3, bfloat16", ("table", torch.Size([2, 3]), torch.bfloat16)),
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
