"""The interpreted kernel, bit for bit against a model of CUDA's order of summation."""

from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import layernorm_modulate
from tests.fastpaths.kernels.row_models import (
    EPS,
    NAN,
    bits,
    chunks,
    exact_fma,
    fuse_interpreted_fma,
    layer_norm,
    modulated,
    normal,
    poisoned,
    special_values,
)

CASES = {
    "one-thread": (1, 1, 4, 0),
    "three-threads-prime-rows": (1, 3, 12, 0),
    "two-warps-two-samples": (2, 1, 132, 0),
    "one-round": (1, 3, 512, 1),
    "second-round-of-one-thread": (2, 3, 516, 2),
    "all-text": (2, 2, 512, 2),
    "text-beyond-the-rows": (1, 3, 12, 7),
    "no-text-two-samples": (2, 3, 508, 0),
    "last-round-cut": (1, 2, 2432, 1),
    "six-rounds": (1, 1, 3072, 0),
}


@pytest.fixture(autouse=True)
def _fused_fma(monkeypatch):
    fuse_interpreted_fma(monkeypatch)


def arguments(batch, rows, width, text_rows):
    """The positional arguments of ``fused``; scale and shift as a modulation's ``chunk`` leaves them."""
    shift, scale, _, text_shift, text_scale, _ = chunks(1, batch, width, 6)
    text = (text_scale, text_shift) if text_rows else (None, None)
    return (normal(0, batch, rows, width), scale, shift, EPS, *text, text_rows)


def expected(x, scale, shift, eps, *text):
    return modulated(x, scale, shift, *text, eps=eps)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_are_those_of_cuda(case):
    given = arguments(*case)
    before = [value.clone() for value in given if isinstance(value, torch.Tensor)]
    out = poisoned(*case[:3])
    assert layernorm_modulate.reject_reason(*given, out=out) is None
    assert layernorm_modulate.fused(*given, out=out) is out
    assert torch.equal(bits(expected(*given)), bits(out))
    assert torch.equal(bits(out), bits(layernorm_modulate.fused(*given)))
    after = [value for value in given if isinstance(value, torch.Tensor)]
    assert all(torch.equal(bits(old), bits(new)) for old, new in zip(before, after, strict=True))


def test_rows_may_be_strided_and_out_may_be_part_of_a_buffer():
    x = normal(0, 3, 2, 16).transpose(0, 1)
    shift, scale = chunks(1, 2, 16, 2)
    buffer = poisoned(2, 5, 24)
    out = buffer[:, 1:4, 8:]
    assert layernorm_modulate.reject_reason(x, scale, shift, EPS, out=out) is None
    layernorm_modulate.fused(x, scale, shift, EPS, out=out)
    assert torch.equal(bits(modulated(x, scale, shift)), bits(out))
    assert buffer[:, [0, 4]].isnan().all()
    assert buffer[..., :8].isnan().all()


@pytest.mark.parametrize("width", [12, 516])
def test_in_place(width):
    x, scale, shift, *rest = arguments(1, 2, width, 1)
    wanted = expected(x.clone(), scale, shift, *rest)
    assert layernorm_modulate.fused(x, scale, shift, *rest, out=x) is x
    assert torch.equal(bits(wanted), bits(x))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("width", [20, 512])
def test_special_values(width):
    """A row each: no huge numbers, subnormals alone, one constant, huge numbers too, an infinity, a NaN."""
    x = special_values(1, 6, width)
    x[0, 0] = x[0, 0].where(x[0, 0].abs() < 1e9, torch.ones(()).bfloat16())
    x[0, 1] = x[0, 1].view(torch.int16).bitwise_and(0x80FF - 0x10000).view(torch.bfloat16)
    x[0, 2] = 3.140625
    x[0, 4, 1], x[0, 5, 2] = float("inf"), NAN
    scale, shift = special_values(1, width).roll(3), special_values(1, width).roll(7)
    wanted, out = modulated(x, scale, shift), layernorm_modulate.fused(x, scale, shift, EPS)
    assert not wanted[0, :3].isnan().any()
    assert wanted[0, 4:].isnan().all()
    assert torch.equal(wanted.isnan(), out.isnan())
    assert torch.equal(bits(wanted.nan_to_num(1.0)), bits(out.nan_to_num(1.0)))


def test_eps_counts():
    x, scale, shift, *_ = arguments(1, 1, 512, 0)
    x = x * 2.0**-9
    outs = [layernorm_modulate.fused(x, scale, shift, eps) for eps in (1e-6, 1e-2)]
    assert torch.equal(bits(modulated(x, scale, shift, eps=1e-2)), bits(outs[1]))
    assert not torch.equal(bits(outs[0]), bits(outs[1]))


def test_the_model_is_layer_norm():
    """At most one value in a thousand is another bf16 neighbour than CPU eager, which sums in another order."""
    x = normal(5, 8, 2432)
    distance = (bits(F.layer_norm(x, (2432,), eps=EPS)).int() - bits(layer_norm(x)).int()).abs()
    assert distance.max() <= 1
    assert distance.sum() * 1000 <= distance.numel()


def test_the_model_of_fma_rounds_once():
    generator = np.random.default_rng(0)
    numbers = generator.standard_normal((3, 500)).astype(np.float32)
    numbers[:, 0] = 1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60  # just above a tie that fp64 alone would lose
    for a, b, c, actual in zip(*numbers, exact_fma(*numbers), strict=True):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        neighbours = (actual, np.nextafter(actual, np.float32(np.inf)), np.nextafter(actual, np.float32(-np.inf)))
        assert actual == min(neighbours, key=lambda value: abs(Fraction(float(value)) - exact))
    assert np.float32(1 + 2.0**-11 + 2.0**-23) == exact_fma(*numbers)[0]


def test_the_reference_is_diffusers_expression():
    x, scale, shift, eps, text_scale, text_shift, rows = arguments(2, 3, 12, 1)
    image = F.layer_norm(x[:, 1:], (12,), eps=eps) * (1 + scale[:, None]) + shift[:, None]
    text = F.layer_norm(x[:, :1], (12,), eps=eps) * (1 + text_scale[:, None]) + text_shift[:, None]
    out = layernorm_modulate.reference(x, scale, shift, eps, text_scale, text_shift, rows)
    assert torch.equal(bits(torch.cat([text, image], dim=1)), bits(out))
    whole = F.layer_norm(x, (12,), eps=eps) * (1 + scale[:, None]) + shift[:, None]
    assert torch.equal(bits(whole), bits(layernorm_modulate.reference(x, scale, shift, eps)))


def vectors(width, batch=1):
    return [torch.zeros(batch, width, dtype=torch.bfloat16) for _ in range(2)]


def rows(width, batch=1, count=3):
    return torch.zeros(batch, count, width, dtype=torch.bfloat16)


X, SCALE = rows(8), vectors(8)[0]
REASONS = {
    "dtype": ("x is float16; the kernel needs bfloat16", (X.half(), SCALE, SCALE, EPS)),
    "dimensions": ("x has 2 dimensions; the kernel needs 3: [B, S, D]", (X[0], SCALE, SCALE, EPS)),
    "empty": ("x has shape [1, 0, 8]; the kernel needs at least one element", (X[:, :0], SCALE, SCALE, EPS)),
    "width": ("x is 6 wide; the kernel needs a multiple of 4 up to 16384", (rows(6), *vectors(6), EPS)),
    "too-wide": (
        "x is 16388 wide; the kernel needs a multiple of 4 up to 16384",
        (rows(16388), *vectors(16388), EPS),
    ),
    "samples": (
        "x holds 65536 samples; the kernel needs at most 65535",
        (rows(4).expand(65536, 3, 4), *vectors(4, 65536), EPS),
    ),
    "last-dimension": (
        "x has strides [24, 1, 3]; the kernel needs a contiguous last dimension",
        (rows(3, count=8).transpose(1, 2), SCALE, SCALE, EPS),
    ),
    "address": (
        "x starts 8 bytes past a 16-byte address; the kernel needs 0",
        (rows(12)[..., 4:], SCALE, SCALE, EPS),
    ),
    "eps-zero": (f"eps is 0.0; the kernel needs at least {2.0**-126}", (X, SCALE, SCALE, 0.0)),
    "eps-nan": (f"eps is nan; the kernel needs at least {2.0**-126}", (X, SCALE, SCALE, NAN)),
    "scale-shape": ("scale has shape [2, 8]; the kernel needs [1, 8]", (X, vectors(8, 2)[0], SCALE, EPS)),
    "scale-dtype": ("scale is float32; the kernel needs bfloat16", (X, SCALE.float(), SCALE, EPS)),
    "shift-device": ("shift is on meta; the other tensors are on cpu", (X, SCALE, SCALE.to("meta"), EPS)),
    "shift-last-dimension": (
        "shift has strides [16, 2]; the kernel needs a contiguous last dimension",
        (X, SCALE, vectors(16)[0][:, ::2], EPS),
    ),
    "text-scale": (
        "text_rows is 1 without text_scale; the kernel needs it",
        (X, SCALE, SCALE, EPS, None, SCALE, 1),
    ),
    "text-shift": (
        "text_rows is 1 without text_shift; the kernel needs it",
        (X, SCALE, SCALE, EPS, SCALE, None, 1),
    ),
    "text-rows": ("text_rows is -1; the kernel needs 0 or more", (X, SCALE, SCALE, EPS, SCALE, SCALE, -1)),
    "out-shape": (
        "out has shape [1, 2, 8]; the kernel needs [1, 3, 8]",
        (X, SCALE, SCALE, EPS, None, None, 0, X[:, :2]),
    ),
    "out-address": (
        "out starts 8 bytes past a 16-byte address; the kernel needs 0",
        (X, SCALE, SCALE, EPS, None, None, 0, rows(12)[..., 4:]),
    ),
    "out-overlapping": (
        "out has strides [24, 0, 1]; an output needs its own memory for every element",
        (X, SCALE, SCALE, EPS, None, None, 0, X[:, :1].expand(1, 3, 8)),
    ),
}


@pytest.mark.parametrize(("expected_reason", "given"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, given):
    assert expected_reason == layernorm_modulate.reject_reason(*given)


def test_modulation_vectors_may_start_anywhere():
    """chunk(6) of a width that 8 does not divide: every second part is 8 bytes off."""
    assert layernorm_modulate.reject_reason(*arguments(1, 1, 12, 1)) is None


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    assert layernorm_modulate.reject_reason(X, SCALE, SCALE, EPS) == "x is on cpu; the kernel needs a CUDA device"


def test_the_operator_is_functional_and_has_a_fake():
    given = arguments(2, 2, 12, 1)
    operator = torch.ops.fuseproof.layernorm_modulate
    assert torch.equal(bits(expected(*given)), bits(operator(*given)))
    torch.library.opcheck(operator.default, given, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        out = operator(*(mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in given))
    assert ((2, 2, 12), torch.bfloat16) == (tuple(out.shape), out.dtype)
    with pytest.raises(ValueError, match="x is float32"):
        operator(given[0].float(), *given[1:])


@pytest.mark.parametrize(
    ("expected_sets", "text_rows"), [(1, 0), (2, 1), (1, 3), (1, 4)], ids=["no-text", "both", "all-text", "beyond"]
)
def test_traffic_counts_everything_once(expected_sets, text_rows):
    given = arguments(2, 3, 12, text_rows)
    x_bytes, vector_bytes = 2 * 3 * 12 * 2, 2 * 12 * 2
    assert 2 * x_bytes + expected_sets * 2 * vector_bytes == layernorm_modulate.traffic_bytes(*given)
