"""Mean and rstd of a row, every fp32 bit, against the model of aten's order; and that the model sees the order."""

import numpy as np
import pytest
import torch

from tests.fastpaths.kernels import row_models
from tests.fastpaths.kernels.row_models import EPS, combined, fuse_interpreted_fma, normal, statistics, threads_apart
from tests.fastpaths.kernels.row_statistics import combine, row_statistics

WIDTHS = (4, 12, 132, 508, 512, 516, 812, 1024, 2432, 3072)


@pytest.fixture(autouse=True)
def _fused_fma(monkeypatch):
    fuse_interpreted_fma(monkeypatch)


def bits(array):
    return torch.as_tensor(array).contiguous().view(torch.int32).flatten()


@pytest.mark.parametrize("width", WIDTHS)
def test_statistics_are_those_of_aten(width):
    x = torch.cat([normal(width, 3, width), threads_apart(width, 5, width)])
    mean, rstd = row_statistics(x, EPS, shuffles=False)
    expected_mean, expected_rstd = statistics(x.float().numpy(), EPS)
    assert torch.equal(bits(expected_mean), bits(mean))
    assert torch.equal(bits(expected_rstd), bits(rstd))


@pytest.mark.parametrize("equals", [False, True], ids=["any-counts", "equal-counts"])
def test_two_states_combine_as_in_aten(equals):
    """4096 pairs whose means are far apart; where counts may differ, some of them are zero."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, 3, 4096, generator=generator)
    states[:, 1].square_()
    counts = 4.0 * torch.randint(1, 33, (2, 4096), generator=generator)
    states[:, 2] = counts[0] if equals else counts * (torch.rand(2, 4096, generator=generator) < 0.9)
    states[:, :2] *= states[:, 2:] > 0
    expected = combined(*states.numpy())
    assert torch.equal(bits(np.stack(expected)), bits(combine(states, equals=equals)))


def test_the_model_is_mean_and_variance():
    """Within 4 fp32 ulp of fp64, relative to the size of the row."""
    x = normal(0, 50, 3072).double().numpy()
    mean, rstd = statistics(x.astype(np.float32), EPS)
    size = np.abs(x).max(axis=1, keepdims=True)
    assert (np.abs(mean - x.mean(axis=1, keepdims=True)) <= 4 * size * 2.0**-24).all()
    assert (np.abs(rstd * np.sqrt(x.var(axis=1, keepdims=True) + EPS) - 1) <= 4 * 2.0**-23).all()


OTHER_ORDERS = {
    "lanes-ascending": ("LANE_OFFSETS", (1, 2, 4, 8, 16)),
    "warps-ascending": ("WARP_OFFSETS", (1, 2)),
    "two-elements-a-vector": ("VECTOR", 2),
    "products-rounded": ("exact_fma", lambda a, b, c: np.float32(a) * np.float32(b) + np.float32(c)),
}


@pytest.mark.parametrize(("name", "value"), OTHER_ORDERS.values(), ids=OTHER_ORDERS)
def test_another_order_has_other_bits(name, value, monkeypatch):
    """Otherwise the comparison above would say nothing."""
    x = torch.cat([normal(1, 10, 3072), threads_apart(1, 10, 3072)]).float().numpy()
    before = statistics(x, EPS)
    monkeypatch.setattr(row_models, name, value)
    after = statistics(x, EPS)
    assert not torch.equal(bits(before[0]), bits(after[0]))
    assert not torch.equal(bits(before[1]), bits(after[1]))


def test_equal_counts_have_equal_shares():
    """Why no division is needed where 512 divides the width: c * (1 / 2c) is 0.5 for every count up to 16384 wide."""
    counts = np.arange(4, 129, 4, dtype=np.float32)[:, None] * 2.0 ** np.arange(7, dtype=np.float32)
    shares = counts * (np.float32(1) / (counts + counts))
    assert np.float32 == shares.dtype.type
    assert (shares == np.float32(0.5)).all()


def test_narrow_products_and_sums_round_alike():
    """A compiler may multiply and add bf16 values in bf16: rounded once or by way of fp32, the bits are the same."""
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 65536, (2, 200_000)).astype(np.uint16)
    codes[0, :100_000] &= 0x9FFF  # half of the pairs: products among and below the subnormals
    a, b = (torch.from_numpy(part.view(np.int16)).view(torch.bfloat16).double() for part in codes)
    finite = a.isfinite() & b.isfinite()
    for exact in (a[finite] * b[finite], a[finite] + b[finite]):
        twice, once = exact.float().bfloat16(), rounded_once(exact)
        assert torch.equal(twice.double(), once)


def rounded_once(exact):
    """fp64 -> the nearest bf16 value, ties to even, as fp64; overflow to infinity."""
    _, exponent = torch.frexp(exact)
    unit = torch.ldexp(torch.ones_like(exact), (exponent - 8).clamp(min=-133))
    nearest = torch.round(exact / unit) * unit
    return nearest.where(nearest.abs() < 2.0**128, torch.copysign(torch.full_like(exact, torch.inf), exact))
