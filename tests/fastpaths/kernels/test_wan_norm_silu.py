"""The interpreted post-ops of WanRMS_norm against diffusers' chain, in integer bits."""

import pytest
import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import wan_norm_silu
from tests.fastpaths.kernels.wan_models import bits, in_layout, silu

BF16, FP32 = torch.bfloat16, torch.float32
DTYPES = {  # x, gamma, what the convolution takes
    "fp32": (FP32, FP32, False),
    "bf16": (BF16, BF16, False),
    "bf16-beside-fp32-weights": (BF16, FP32, False),
    "bf16-beside-fp32-weights-to-bf16": (BF16, FP32, True),
    "fp32-beside-bf16-weights": (FP32, BF16, False),
}
LAYOUTS = {"contiguous": False, "channels-last": True}
SHAPES = {"odd": (2, 7, 3, 5, 1), "a-picture": (1, 6, 4, 5), "more-than-a-block": (1, 3, 2, 19, 37)}


@pytest.fixture(autouse=True)
def exp_of_the_interpreter(monkeypatch):
    monkeypatch.setattr(F, "silu", silu)


def numbers(*shape, dtype=FP32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def arguments(shape, x_dtype=FP32, gamma_dtype=FP32, channels_last=False):
    x = in_layout(numbers(*shape, dtype=x_dtype), channels_last)
    ones = (1,) * (len(shape) - 2)
    denominator = x.float().norm(2, 1, keepdim=True).clamp_min(1e-12).contiguous()
    return x, denominator, numbers(shape[1], *ones, dtype=gamma_dtype, seed=1), None, shape[1] ** 0.5


def check(*call):
    x = call[0]
    before = x.clone()
    assert wan_norm_silu.reject_reason(*call) is None
    expected = wan_norm_silu.reference(*call)
    actual = wan_norm_silu.fused(*call)
    assert (expected.dtype, x.stride()) == (actual.dtype, actual.stride())
    assert torch.equal(bits(expected), bits(actual))
    assert torch.equal(bits(before), bits(x))
    assert torch.equal(bits(actual), bits(wan_norm_silu.fused(*call)))


@pytest.mark.parametrize("channels_last", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("x_dtype", "gamma_dtype", "to_bf16"), DTYPES.values(), ids=DTYPES)
def test_dtypes_and_layouts(x_dtype, gamma_dtype, to_bf16, channels_last):
    check(*arguments((1, 7, 2, 3, 5), x_dtype, gamma_dtype, channels_last), True, to_bf16)


@pytest.mark.parametrize("channels_last", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes(shape, channels_last):
    check(*arguments(shape, BF16, BF16, channels_last))


@pytest.mark.parametrize("with_silu", [True, False], ids=["silu", "norm-alone"])
@pytest.mark.parametrize("bias_dtype", [FP32, BF16], ids=["fp32-bias", "bf16-bias"])
def test_a_bias_and_no_silu(bias_dtype, with_silu):
    x, denominator, gamma, _, scale = arguments((1, 5, 2, 3, 3), BF16, BF16)
    check(x, denominator, gamma, numbers(5, 1, 1, 1, dtype=bias_dtype, seed=2), scale, with_silu)


@pytest.mark.parametrize("gamma_dtype", [FP32, BF16], ids=["fp32-weights", "bf16-weights"])
def test_every_finite_bf16_value(gamma_dtype):
    """x / 1 * 1 * 1 is x, so SiLU sees all 65,280; sqrt(3) and a gamma move them through every rounding after that."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16)
    x = every[every.isfinite()].view(1, 3, 1, 136, 160)
    assert 65280 == x.numel()
    ones = torch.ones(1, 1, 1, 136, 160)
    check(x, ones, torch.ones(3, 1, 1, 1, dtype=gamma_dtype), None, 1.0)
    gamma = torch.tensor([0.75, -1.3, 3e-5]).to(gamma_dtype).view(3, 1, 1, 1)
    check(x, ones * 0.7, gamma, None, 3**0.5)


def test_zero_norms_are_clamped_and_minus_zero_becomes_zero():
    x, _, gamma, _, scale = arguments((1, 3, 1, 2, 4))
    x[..., :2] = -0.0
    denominator = x.norm(2, 1, keepdim=True).clamp_min(1e-12).contiguous()
    assert 1e-12 == pytest.approx(float(denominator[..., :2].max()))
    check(x, denominator, gamma, None, scale, False)
    result = wan_norm_silu.fused(x, denominator, gamma.abs(), None, scale, False)
    assert not torch.signbit(result[..., :2]).any()


def test_subnormal_results_of_silu_are_kept():
    x = (torch.arange(1, 13, dtype=FP32) * 1e-41).view(1, 3, 1, 2, 2)
    ones = torch.ones(1, 1, 1, 2, 2)
    check(x, ones, torch.ones(3, 1, 1, 1), None, 1.0)
    result = wan_norm_silu.fused(x, ones, torch.ones(3, 1, 1, 1), None, 1.0)
    assert bool((result > 0).all())
    assert 1e-38 > float(result.max())


@torch.no_grad()
@pytest.mark.parametrize(("x_dtype", "gamma_dtype", "to_bf16"), DTYPES.values(), ids=DTYPES)
def test_the_reference_is_what_diffusers_computes(x_dtype, gamma_dtype, to_bf16):
    norm = WanRMS_norm(7, images=False).to(gamma_dtype)  # sqrt(7) is no integer
    x, denominator, gamma, _, scale = arguments((1, 7, 2, 3, 5), x_dtype, gamma_dtype)
    norm.gamma.copy_(gamma)
    expected = F.silu(norm(x))
    actual = wan_norm_silu.reference(x, denominator, gamma, None, scale, True, to_bf16)
    assert torch.equal(bits(expected.bfloat16() if to_bf16 else expected), bits(actual))


REASONS = {
    "fp16": ("x is torch.float16; the kernel needs torch.bfloat16 or torch.float32", lambda x, *r: (x.half(), *r)),
    "dimensions": (
        "x has shape [7, 3]; the kernel needs [N, C, *] with at least one element",
        lambda x, *r: (x[0, :, 0, :, 0], *r),
    ),
    "strides": (
        "x has strides [210, 30, 15, 1, 3]; the kernel needs them contiguous or channels-last",
        lambda x, *r: (x.transpose(3, 4).contiguous().transpose(3, 4), *r),
    ),
    "denominator": (
        "denominator is [1, 1, 2, 3, 5] torch.bfloat16 of strides [30, 30, 15, 5, 1]; "
        "the kernel needs [1, 1, 2, 3, 5] torch.float32, contiguous",
        lambda x, d, *r: (x, d.bfloat16(), *r),
    ),
    "gamma": (
        "gamma has shape [6, 1, 1, 1]; the kernel needs 7 contiguous elements",
        lambda x, d, g, *r: (x, d, g[:6], *r),
    ),
    "gamma-dtype": (
        "gamma is torch.float64; the kernel needs torch.bfloat16 or torch.float32",
        lambda x, d, g, *r: (x, d, g.double(), *r),
    ),
}


@pytest.mark.parametrize(("expected_reason", "make"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, make):
    assert expected_reason == wan_norm_silu.reject_reason(*make(*arguments((1, 7, 2, 3, 5))))


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    assert "x is on cpu; the kernel needs a CUDA device" == wan_norm_silu.reject_reason(*arguments((1, 7, 2, 3, 5)))


def test_the_operator_is_functional_and_has_a_fake():
    call = arguments((1, 7, 2, 3, 5), BF16, FP32, True)
    operator = torch.ops.fuseproof.wan_norm_silu
    assert torch.equal(bits(wan_norm_silu.fused(*call)), bits(operator(*call)))
    torch.library.opcheck(operator.default, call, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        out = operator(*(mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in call))
    assert (call[0].stride(), FP32) == (out.stride(), out.dtype)


def test_traffic_counts_everything_once():
    x, denominator, gamma, bias, scale = arguments((1, 7, 2, 3, 5), BF16, FP32)
    assert 210 * (2 + 4) + 30 * 4 + 7 * 4 == wan_norm_silu.traffic_bytes(x, denominator, gamma, bias, scale)
    assert 210 * (2 + 2) + 30 * 4 + 7 * 4 == wan_norm_silu.traffic_bytes(x, denominator, gamma, bias, scale, True, True)
