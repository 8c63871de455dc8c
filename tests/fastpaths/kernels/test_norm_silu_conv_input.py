"""The interpreted one-pass norm in front of a convolution: close to the same mathematics in fp64, all in place."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import norm_silu_conv_input
from tests.fastpaths.kernels.wan_models import bits, in_layout

BF16, FP32 = torch.bfloat16, torch.float32
DTYPES = {  # x, gamma, result
    "fp32": (FP32, FP32, False),
    "bf16": (BF16, BF16, False),
    "autocast": (BF16, FP32, True),
    "autocast-of-fp32": (FP32, FP32, True),
}
FLOOR = 1e-6


def numbers(*shape, dtype=FP32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def call_of(shape=(1, 7, 2, 3, 5), x_dtype=BF16, gamma_dtype=BF16, to_bf16=False, cached=1, front=2, *, last=True):
    samples, channels, _, *plane = shape
    x = in_layout(numbers(*shape, dtype=x_dtype), last)
    gamma, x_bias = (numbers(channels, dtype=gamma_dtype, seed=seed) for seed in (1, 2))
    cache = in_layout(numbers(samples, channels, cached, *plane, dtype=x_dtype, seed=3), last) if cached else None
    return x, gamma.view(-1, 1, 1, 1), x_bias, cache, channels**0.5, True, front, 1, 1, to_bf16


def eager(x, gamma, x_bias, cache, scale, silu, *_):
    """What diffusers rounds on the way, of the same input."""
    hidden = x + x_bias.to(x.dtype).view(-1, 1, 1, 1)
    hidden = F.normalize(hidden.float(), dim=1).to(x.dtype) * scale * gamma
    return F.silu(hidden) if silu else hidden


def in_fp64(x, gamma, x_bias, cache, scale, silu, front, pad_h, pad_w, to_bf16):
    """The same without any rounding, but for that of the cache's own values."""
    hidden = x.double() + x_bias.double().view(-1, 1, 1, 1)
    hidden = F.normalize(hidden, dim=1) * scale * gamma.double()
    hidden = F.silu(hidden) if silu else hidden
    frames = [] if cache is None else [cache.to(BF16 if to_bf16 else x.dtype).double()]
    seen = torch.cat([*frames, hidden], 2)
    room = max(0, front - (seen.shape[2] - x.shape[2]))
    padded = F.pad(seen, (pad_w, pad_w, pad_h, pad_h, room, 0))
    return padded[:, :, padded.shape[2] - x.shape[2] - front :], seen[:, :, -2:]


def check(call):
    x, _, _, _, _, _, front, pad_h, pad_w, to_bf16 = call
    before = [one.clone() for one in call if isinstance(one, torch.Tensor)]
    assert norm_silu_conv_input.reject_reason(*call) is None
    wanted = norm_silu_conv_input.reference(*call)
    exact = in_fp64(*call)
    rounded = eager(*call).to(torch.bfloat16 if to_bf16 else x.dtype)
    inside = exact[0][:, :, front:, pad_h : -pad_h or None, pad_w : -pad_w or None]
    limit = 2 * (rounded.double() - inside).abs().max()
    actual = norm_silu_conv_input.fused(*call)
    for one, other, true in zip(wanted, actual, exact, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert other.is_contiguous(memory_format=torch.channels_last_3d)
        assert float((other.double() - true).abs().max()) <= float(limit) + FLOOR
        assert torch.equal(one == 0, other == 0)  # the border, and nothing else
    assert all(
        torch.equal(bits(one), bits(other))
        for one, other in zip(actual, norm_silu_conv_input.fused(*call), strict=True)
    )
    after = [one for one in call if isinstance(one, torch.Tensor)]
    assert all(torch.equal(bits(one), bits(other)) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("last", [True, False], ids=["channels-last", "contiguous"])
@pytest.mark.parametrize(("x_dtype", "gamma_dtype", "to_bf16"), DTYPES.values(), ids=DTYPES)
def test_dtypes_and_layouts(x_dtype, gamma_dtype, to_bf16, last):
    check(call_of(x_dtype=x_dtype, gamma_dtype=gamma_dtype, to_bf16=to_bf16, last=last))


@pytest.mark.parametrize("frames", [1, 2, 4])
@pytest.mark.parametrize("cached", [0, 1, 2])
def test_frames_and_caches(cached, frames):
    check(call_of((2, 3, frames, 2, 3), cached=cached))


def test_more_channels_than_a_tile_of_positions():
    check(call_of((1, 700, 1, 2, 2), FP32, FP32))


def test_without_silu_border_or_frames_in_front():
    x, gamma, x_bias, _, scale, *_ = call_of()
    check((x, gamma, x_bias, None, scale, False, 0, 0, 0, False))


def test_zero_norms_are_clamped():
    x, gamma, _, cache, *rest = call_of(x_dtype=FP32, gamma_dtype=FP32)
    x[:, :, 0] = 0.0
    padded, _ = norm_silu_conv_input.fused(x, gamma, None, cache, *rest)
    assert not padded[:, :, 2].any()
    assert padded.isfinite().all()


REASONS = {
    "fp16": ("x is torch.float16; the kernel needs torch.bfloat16 or torch.float32", lambda x, *r: (x.half(), *r)),
    "channels": (
        "x has 4097 channels; the kernel needs at most 4096",
        lambda x, *r: (torch.zeros(1, 4097, 1, 1, 1), *r),
    ),
    "gamma": ("gamma has shape [6, 1, 1, 1]; the kernel needs 7 contiguous elements", lambda x, g, *r: (x, g[:6], *r)),
    "x_bias": ("x_bias has shape [3]; the kernel needs 7 contiguous elements", lambda x, g, b, *r: (x, g, b[:3], *r)),
    "cache": (
        "cache has shape [1, 7, 3, 3, 5]; the kernel needs that of x with 1 or 2 frames",
        lambda x, g, b, _, *r: (x, g, b, torch.zeros(1, 7, 3, 3, 5), *r),
    ),
    "front": ("front is 0; the kernel needs 1 or 2, or 0 without a cache", lambda *c: (*c[:6], 0, *c[7:])),
    "pads": ("pads are -1 and 1; the kernel needs 0 or more", lambda *c: (*c[:7], -1, *c[8:])),
}


@pytest.mark.parametrize(("expected_reason", "make"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, make):
    assert expected_reason == norm_silu_conv_input.reject_reason(*make(*call_of()))


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    assert "x is on cpu; the kernel needs a CUDA device" == norm_silu_conv_input.reject_reason(*call_of())


def test_the_operator_is_functional_and_has_a_fake():
    call = call_of()
    operator = torch.ops.fuseproof.norm_silu_conv_input
    pairs = zip(norm_silu_conv_input.fused(*call), operator(*call), strict=True)
    assert all(torch.equal(bits(one), bits(other)) for one, other in pairs)
    torch.library.opcheck(operator.default, call, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        out = operator(*(mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in call))
    assert [one.stride() for one in operator(*call)] == [one.stride() for one in out]


def test_traffic_counts_everything_once():
    call = call_of()
    expected = 2 * (210 + 7 + 7 + 105 + 7 * (4 * 5 * 7 + 2 * 15))
    assert expected == norm_silu_conv_input.traffic_bytes(*call)
