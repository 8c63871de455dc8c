"""The interpreted kernel against a model of CUDA's order; over all bf16 values no choice of fma or tanh shows."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fuseproof.fastpaths.kernels import gelu_tanh
from fuseproof.fastpaths.kernels.gelu_tanh import Launch

SHAPES = {
    "one-element": (1, 1, 1),
    "prime": (1, 3, 7),
    "two-samples": (2, 5, 130),
    "two-blocks-the-second-cut": (1, 2, 72),
}


def bits(tensor):
    return tensor.contiguous().view(torch.int16)


def all_values():
    """Every bf16 bit pattern, [1, 8, 8192]."""
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).reshape(1, 8, 8192)


def fma(a, b, c):
    """One rounding: products of fp32 numbers are exact in fp64."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


@np.errstate(all="ignore")
def model(x):
    """aten's GeluCUDAKernelImpl with a correctly rounded tanh: bf16 -> bf16."""
    values = x.float().numpy()
    inner = np.float32(0.7978845608028654) * fma(values * values * values, np.float32(0.044715), values)
    tanh = np.tanh(inner.astype(np.float64)).astype(np.float32)
    return torch.from_numpy(np.float32(0.5) * values * (np.float32(1) + tanh)).bfloat16()


def random_values(*shape):
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).bfloat16()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # infinities on the way are part of the arithmetic
def test_every_finite_value_and_the_others():
    x = all_values()
    wanted, actual = model(x), gelu_tanh.fused(x)
    finite = x.isfinite()
    assert 65280 == int(finite.sum())
    assert 0 == int((bits(wanted) != bits(actual))[finite].sum())
    assert torch.equal(wanted.isnan(), actual.isnan())
    assert torch.equal(wanted[~wanted.isnan()], actual[~wanted.isnan()])


def test_the_reference_is_diffusers_expression():
    x = random_values(1, 3, 40)
    assert torch.equal(bits(torch.nn.GELU(approximate="tanh")(x)), bits(gelu_tanh.reference(x)))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes(shape, monkeypatch):
    monkeypatch.setattr(gelu_tanh, "_LAUNCH", Launch(block=64))
    x = random_values(*shape)
    assert gelu_tanh.reject_reason(x) is None
    assert torch.equal(bits(model(x)), bits(gelu_tanh.fused(x)))


def test_in_place_and_the_same_bits_twice():
    x = random_values(2, 3, 40)
    before = x.clone()
    first = gelu_tanh.fused(x)
    assert torch.equal(bits(before), bits(x))
    in_place = gelu_tanh.fused(x, out=x)
    assert in_place is x
    assert torch.equal(bits(first), bits(x))
    assert torch.equal(bits(model(before)), bits(x))


def test_a_strided_view_into_a_strided_view():
    source = torch.full((2, 3, 64), float("nan"), dtype=torch.bfloat16)
    x = source[..., 8:48].copy_(random_values(2, 3, 40))
    buffer = torch.full((2, 3, 96), float("nan"), dtype=torch.bfloat16)
    out = gelu_tanh.fused(x, out=buffer[..., 16:56])
    assert torch.equal(bits(model(x)), bits(out))
    assert buffer[..., :16].isnan().all()
    assert buffer[..., 56:].isnan().all()


REASONS = {
    "fp32": ("x is float32; the kernel needs bfloat16", lambda x: x.float(), None),
    "two-dimensions": ("x has 2 dimensions; the kernel needs 3: [B, S, N]", lambda x: x[0], None),
    "empty": ("x has shape [2, 0, 40]; the kernel needs at least one element", lambda x: x[:, :0], None),
    "last-dimension": (
        "x has strides [120, 1, 3]; the kernel needs a contiguous last dimension",
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        None,
    ),
    "address": ("x starts 2 bytes past a 16-byte address; the kernel needs 0", lambda x: x[..., 1:], None),
    "out-dtype": ("out is float32; the kernel needs bfloat16", None, lambda x: x.float()),
    "out-shape": ("out has shape [2, 3, 39]; the kernel needs [2, 3, 40]", None, lambda x: x[..., :39]),
    "out-device": ("out is on meta; the other tensors are on cpu", None, lambda x: x.to("meta")),
    "out-overlaps-itself": (
        "out has strides [40, 0, 1]; an output needs its own memory for every element",
        None,
        lambda x: x[:, :1].contiguous().expand(2, 3, 40),
    ),
}


@pytest.mark.parametrize(("expected_reason", "change", "make_out"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, change, make_out):
    x = random_values(2, 3, 40)
    out = None if make_out is None else make_out(x)
    assert expected_reason == gelu_tanh.reject_reason(x if change is None else change(x), out)


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    from triton import knobs

    monkeypatch.setattr(knobs.runtime, "interpret", False)
    assert gelu_tanh.reject_reason(random_values(1, 1, 8)) == "x is on cpu; the kernel needs a CUDA device"


def test_the_operator_is_functional_and_has_a_fake():
    x = random_values(1, 3, 40)
    assert torch.equal(bits(model(x)), bits(torch.ops.fuseproof.gelu_tanh(x)))
    torch.library.opcheck(torch.ops.fuseproof.gelu_tanh.default, (x,), test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        out = torch.ops.fuseproof.gelu_tanh(mode.from_tensor(x))
    assert ((1, 3, 40), torch.bfloat16) == (tuple(out.shape), out.dtype)
    with pytest.raises(ValueError, match="x is float32"):
        torch.ops.fuseproof.gelu_tanh(x.float())


def test_traffic_counts_everything_once():
    x = random_values(1, 3, 40)
    assert 4 * 120 == gelu_tanh.traffic_bytes(x, out=x)
