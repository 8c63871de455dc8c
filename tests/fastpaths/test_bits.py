import math
from dataclasses import dataclass

import pytest
import torch

from fuseproof.fastpaths.bits import (
    BitDifference,
    bit_difference,
    bits_equal,
    layout_mismatch,
    structure_mismatch,
    tensors_of,
)

INFINITE, NAN = math.inf, math.nan
QUIET_NAN = torch.tensor([0x7FC00000], dtype=torch.int32).view(torch.float32)
OTHER_NAN = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize(
    ("expected", "left", "right"),
    [
        pytest.param(True, torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), id="equal"),
        pytest.param(False, torch.tensor([0.0]), torch.tensor([-0.0]), id="minus-zero"),
        pytest.param(True, QUIET_NAN, QUIET_NAN.clone(), id="same-nan-payload"),
        pytest.param(False, QUIET_NAN, OTHER_NAN, id="other-nan-payload"),
        pytest.param(True, torch.empty(0, 3), torch.empty(0, 3), id="empty"),
        pytest.param(True, torch.ones(3, 5).T, torch.ones(3, 5).T, id="non-contiguous"),
        pytest.param(False, (torch.ones(2), torch.ones(2)), (torch.ones(2), torch.zeros(2)), id="second-of-tuple"),
        pytest.param(False, torch.tensor([1 + 2j]), torch.tensor([1 - 2j]), id="complex"),
        pytest.param(True, torch.tensor([True, False]), torch.tensor([True, False]), id="bool"),
    ],
)
def test_bits_decide_equality(expected, left, right):
    assert expected == bits_equal(left, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("expected_ulp", "value", "other"),
    [(1, 1.0, "next"), (1, -1.0, "next"), (0, 1.0, "same"), (0, 0.0, "negated")],
    ids=["one-up", "one-up-negative", "same", "zeros-of-both-signs"],
)
def test_ulp_distance_counts_representable_values(expected_ulp, dtype, value, other):
    left = torch.tensor([value, value], dtype=dtype)
    right = left.clone()
    if other == "next":
        integers = {4: torch.int32, 2: torch.int16}[left.element_size()]
        right = (left.view(integers) + torch.tensor([0, 1], dtype=integers)).view(dtype)
    if other == "negated":
        right = -left
    expected_share = {"next": 0.5, "same": 0.0, "negated": 1.0}[other]
    found = bit_difference(left, right)
    assert (expected_share, expected_ulp) == (found.differing_share, found.largest_ulp)


@pytest.mark.parametrize(
    ("expected", "result", "eager"),
    [
        pytest.param((4.0, 0.5, 0.1), [3.5, 3.0, 0.0], [4.0, 3.0, 0.0], id="in value"),
        pytest.param((1e-30, 1e-6, 2e-7), [1e-6, 3.0, 4.0], [1e-30, 3.0, 4.0], id="beside 0"),
        pytest.param((0.0, 1.0, INFINITE), [1.0, 0.0], [0.0, 0.0], id="eager is 0"),
        pytest.param((4.0, 1.0, NAN), [INFINITE, 5.0], [INFINITE, 4.0], id="equal infinities"),
        pytest.param((3.0, NAN, NAN), [NAN, 4.0], [3.0, 4.0], id="a number against none"),
    ],
)
def test_a_difference_is_also_measured_in_value_and_relatively(expected, result, eager):
    found = bit_difference(torch.tensor(result), torch.tensor(eager))
    measured = found.eager_at_largest_ulp, found.largest_absolute, found.relative_error
    assert pytest.approx(expected, rel=1e-5, nan_ok=True) == measured
    shown = found.to_json()["relative_error"]
    assert (None if not math.isfinite(expected[2]) else found.relative_error) == shown


def test_the_worst_of_two_differences_keeps_the_value_that_belongs_to_its_ulp():
    near, far = BitDifference(0.5, 9, 1e-6, 0.1, NAN), BitDifference(0.25, 3, 2.0, 0.2, 0.5)
    for worst in (near.worst(far), far.worst(near)):
        assert (0.5, 9, 1e-6, 0.2) == (
            worst.differing_share, worst.largest_ulp, worst.eager_at_largest_ulp, worst.largest_absolute
        )  # fmt: skip
        assert math.isnan(worst.relative_error)


def test_a_share_of_complex_values_is_at_most_all_of_them():
    assert 1.0 == bit_difference(torch.tensor([1 + 2j]), torch.tensor([3 + 4j])).differing_share


@pytest.mark.parametrize(
    ("expected", "left", "right"),
    [
        (None, torch.ones(2), torch.zeros(2)),
        ("shape torch.Size([2]) against torch.Size([3])", torch.ones(2), torch.ones(3)),
        ("dtype torch.float32 against torch.bfloat16", torch.ones(2), torch.ones(2, dtype=torch.bfloat16)),
        ("strides (1, 3) against (2, 1)", torch.ones(2, 3).T, torch.ones(3, 2)),
        ("1 tensors against 2", torch.ones(2), (torch.ones(2), torch.ones(2))),
    ],
    ids=["none", "shape", "dtype", "strides", "count"],
)
def test_layout_is_compared_before_bits(expected, left, right):
    assert expected == layout_mismatch(left, right)


@dataclass
class Output:
    sample: object
    other: object = None


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("expected", "left", "right"),
    [
        (None, ONE, torch.zeros(3)),
        (None, (ONE, [ONE, None]), (ONE, [ONE, None])),
        (None, Output(ONE, 3), Output(ONE, 3)),
        (None, {"a": ONE}, {"a": ONE}),
        ("None against a tensor", None, ONE),
        ("a list against a tuple", [ONE], (ONE,)),
        ("1 parts against 2 parts", (ONE,), (ONE, ONE)),
        ("None against a tensor in part 1 in part other", Output(ONE, (ONE, None)), Output(ONE, (ONE, ONE))),
        ("other names", {"a": ONE}, {"b": ONE}),
        ("3 against 4 in part other", Output(ONE, 3), Output(ONE, 4)),
        ("a object against a object, which cannot be compared", object(), object()),
    ],
    ids=["shapes", "nested", "dataclass", "dict", "None", "type", "length", "inside", "names", "number", "unknown"],
)
def test_results_must_be_built_alike(expected, left, right):
    assert expected == structure_mismatch(left, right)


def test_tensors_are_found_in_everything_that_holds_them():
    one, two, three = map(torch.tensor, (1, 2, 3))
    assert [1, 2, 3] == [int(found) for found in tensors_of([Output(one), {"a": (two, three)}])]
    with pytest.raises(TypeError, match="not object"):
        list(tensors_of(object()))
