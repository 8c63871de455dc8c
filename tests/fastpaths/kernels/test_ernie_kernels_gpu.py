"""On the card: ERNIE-Image's kernels bit for bit against torch's own, at its shapes and at odd ones."""

import pytest
import torch
import torch.nn.functional as F

from fuseproof.fastpaths.bits import bit_difference
from fuseproof.fastpaths.kernels import (
    gated_residual_rmsnorm_modulate,
    geglu,
    qk_norm_rotate_half,
    rms_statistics,
    rmsnorm_modulate,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EPS = 1e-6
ROWS = {"turbo": (1, 4352), "odd-text": (1, 4173), "guided": (2, 4173), "prime": (2, 337), "fewest": (1, 16)}
WIDTHS = (4096, 3072, 128, 640, 8064)


@pytest.fixture(autouse=True)
def exact_rounding():
    """In place of the interpreter's fixture of this name: these tests run compiled kernels."""


@pytest.fixture
def generator():
    return torch.Generator("cuda").manual_seed(0)


def normal(generator, *shape):
    """Normal numbers in rows of very different length, bf16."""
    lengths = torch.randn(*shape[:-1], 1, device="cuda", generator=generator).mul(2).exp()
    return (torch.randn(shape, device="cuda", generator=generator) * lengths).bfloat16()


def stream(generator, batch, rows, width):
    """[B, S, D] as a view of [S, B, D], as the transformer has it."""
    return normal(generator, rows, batch, width).transpose(0, 1)


def poisoned_like(x):
    return torch.full_like(x.transpose(0, 1).contiguous(), float("nan")).transpose(0, 1)


def assert_bits(expected, actual):
    difference = bit_difference(expected, actual)
    assert (0.0, 0) == (difference.differing_share, difference.largest_ulp)


def vectors(generator, batch, width):
    """Weight [D], then shift, scale and gate [B, D] as a modulation's ``chunk`` leaves them."""
    weight = normal(generator, 1, width)[0]
    return weight, *normal(generator, batch, 6 * width).chunk(6, dim=1)[:3]


@pytest.mark.parametrize("reduction", ["aten", "torch"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_norms(generator, rows, width, reduction, monkeypatch):
    monkeypatch.setattr(rms_statistics, "REDUCTION", reduction)
    x, (weight, shift, scale, gate) = stream(generator, *rows, width), vectors(generator, rows[0], width)
    given = x, weight, scale, shift, EPS
    assert rmsnorm_modulate.reject_reason(*given) is None
    assert_bits(rmsnorm_modulate.reference(*given), rmsnorm_modulate.fused(*given, out=poisoned_like(x)))
    update = normal(generator, *rows, width)
    joined = x, update, gate, *given[1:]
    expected = gated_residual_rmsnorm_modulate.reference(*joined)
    assert_bits(expected, gated_residual_rmsnorm_modulate.fused(*joined, out=poisoned_like(x)))
    assert_bits(expected, gated_residual_rmsnorm_modulate.fused(*joined, out=x, modulated=update))


def test_the_mean_of_squares_itself_has_torchs_order(generator):
    """Every one of many rows, by way of rows whose result is their rstd."""
    x = normal(generator, 1, 8192, 4096)
    one, zero = torch.ones(4096, device="cuda").bfloat16(), torch.zeros(1, 4096, device="cuda").bfloat16()
    given = x, one, zero, zero, EPS
    assert_bits(rmsnorm_modulate.reference(*given), rmsnorm_modulate.fused(*given))


@pytest.mark.parametrize("fold", ["lanes", "halves"])
@pytest.mark.parametrize("heads", [32, 24, 5])
@pytest.mark.parametrize("rows", [(1, 4352), (2, 4173), (1, 1), (2, 37)], ids=str)
def test_query_and_key(generator, rows, heads, fold, monkeypatch):
    monkeypatch.setattr(qk_norm_rotate_half, "_LAUNCH", qk_norm_rotate_half.Launch(fold=fold))
    packed = normal(generator, *rows, 3, heads, 128)
    query, key, value = packed.unbind(2)
    weights = normal(generator, 2, 128)
    angles = 5000 * torch.rand(*rows, 128, device="cuda", generator=generator)
    given = query, key, *weights, angles.cos().bfloat16(), angles.sin().bfloat16(), EPS
    assert qk_norm_rotate_half.reject_reason(*given) is None
    expected, before = qk_norm_rotate_half.reference(*given), value.clone()
    assert_bits(expected, qk_norm_rotate_half.fused(*given))
    assert_bits(expected, qk_norm_rotate_half.fused(*given, out_query=query, out_key=key))
    assert_bits(before, value)


@pytest.mark.parametrize("shape", [(1, 4352, 12288), (2, 4173, 12288), (1, 7, 1000)], ids=str)
def test_gelu_times_up(generator, shape):
    gate, up = normal(generator, *shape[:2], 2 * shape[2]).chunk(2, dim=-1)
    assert_bits(geglu.reference(gate, up), geglu.fused(gate, up))


def test_gelu_of_every_finite_value():
    codes = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).cuda()
    gate = codes[codes.isfinite()].view(1, 16, -1)
    assert_bits(F.gelu(gate), geglu.fused(gate, torch.ones_like(gate)))
