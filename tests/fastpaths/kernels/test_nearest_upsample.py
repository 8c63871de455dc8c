"""The interpreted upsampling against diffusers' sampler; without a bias every bit must arrive."""

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanUpsample
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import nearest_upsample
from tests.fastpaths.kernels.wan_models import bits, in_layout

BF16, FP32 = torch.bfloat16, torch.float32
SHAPES = {"odd": (2, 6, 3, 5, 7), "two-tiles-of-channels": (1, 70, 1, 2, 3), "two-tiles-of-positions": (1, 4, 2, 6, 11)}


def numbers(*shape, dtype=FP32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(*call):
    x = call[0]
    before = x.clone()
    assert nearest_upsample.reject_reason(*call) is None
    wanted = nearest_upsample.reference(*call)
    actual = nearest_upsample.fused(*call)
    assert (wanted.stride(), wanted.dtype) == (actual.stride(), actual.dtype)
    assert torch.equal(bits(wanted), bits(actual))
    assert torch.equal(bits(before), bits(x))
    assert torch.equal(bits(actual), bits(nearest_upsample.fused(*call)))


@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("last", [True, False], ids=["channels-last", "contiguous"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes(shape, last, frames):
    check(in_layout(numbers(*shape, dtype=BF16), last), None, frames)


@pytest.mark.parametrize(("dtype", "bias_dtype"), [(BF16, BF16), (BF16, FP32), (FP32, FP32)])
def test_a_bias_of_the_time_convolution(dtype, bias_dtype):
    check(numbers(1, 6, 2, 3, 4, dtype=dtype), numbers(6, dtype=bias_dtype, seed=1), 2)


def test_the_reference_is_what_the_sampler_computes():
    x = numbers(1, 6, 2, 3, 4, dtype=BF16)
    twice = torch.stack(x.reshape(1, 2, 3, 2, 3, 4).unbind(1), 3).reshape(1, 3, 4, 3, 4)
    pictures = twice.permute(0, 2, 1, 3, 4).reshape(4, 3, 3, 4)
    large = WanUpsample(scale_factor=(2.0, 2.0), mode="nearest-exact")(pictures)
    expected = large.view(1, 4, 3, 6, 8).permute(0, 2, 1, 3, 4)
    assert torch.equal(bits(expected), bits(nearest_upsample.reference(x, None, 2)))


REASONS = {
    "fp16": ("x is torch.float16; the kernel needs torch.bfloat16 or torch.float32", lambda x: (x.half(), None, 2)),
    "dimensions": (
        "x has shape [6, 2, 3, 4]; the kernel needs [B, C, T, H, W] with at least one element",
        lambda x: (x[0], None, 2),
    ),
    "bias": ("bias has shape [5]; the kernel needs 6 contiguous elements", lambda x: (x, torch.zeros(5), 2)),
    "frames": ("frames is 3; the kernel needs 1 or 2", lambda x: (x, None, 3)),
    "channels": ("x has 5 channels; the kernel needs a multiple of 2", lambda x: (x[:, :5], None, 2)),
    "size": (
        "a sample of the result has 2147483648 elements; the kernel needs fewer than 2147483648",
        lambda _: (torch.empty(1, 8, 1, 2**13, 2**13, dtype=BF16, device="meta"), None, 2),
    ),
}


@pytest.mark.parametrize(("expected_reason", "make"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, make):
    assert expected_reason == nearest_upsample.reject_reason(*make(numbers(1, 6, 2, 3, 4, dtype=BF16)))


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    reason = nearest_upsample.reject_reason(numbers(1, 6, 2, 3, 4), None, 2)
    assert "x is on cpu; the kernel needs a CUDA device" == reason


def test_the_operator_is_functional_and_has_a_fake():
    x = numbers(1, 6, 2, 3, 4, dtype=BF16)
    operator = torch.ops.fuseproof.nearest_upsample
    assert torch.equal(bits(nearest_upsample.fused(x, None, 2)), bits(operator(x, None, 2)))
    torch.library.opcheck(operator.default, (x, None, 2), test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        out = operator(mode.from_tensor(x), None, 2)
    assert nearest_upsample.fused(x, None, 2).stride() == out.stride()


def test_traffic_counts_everything_once():
    x, bias = numbers(1, 6, 2, 3, 4, dtype=BF16), numbers(6)
    assert 5 * 144 * 2 + 24 == nearest_upsample.traffic_bytes(x, bias, 2)
