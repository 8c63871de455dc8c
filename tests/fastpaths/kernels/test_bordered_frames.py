"""The interpreted copy against diffusers' downsampler; nothing is computed, so every bit must arrive."""

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanResample
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import bordered_frames
from tests.fastpaths.kernels.wan_models import bits, in_layout

SHAPES = {"one-frame": (1, 3, 1, 2, 2), "odd": (2, 6, 3, 5, 7), "two-tiles-of-channels": (1, 70, 2, 2, 3)}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def numbers(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def check(x, border):
    before = x.clone()
    assert bordered_frames.reject_reason(x, border) is None
    wanted, actual = bordered_frames.reference(x, border), bordered_frames.fused(x, border)
    assert (wanted.shape, wanted.dtype) == (actual.shape, actual.dtype)
    assert actual.is_contiguous(memory_format=torch.channels_last_3d)
    assert torch.equal(bits(wanted), bits(actual))
    assert torch.equal(bits(before), bits(x))


@pytest.mark.parametrize("border", [0, 1, 2])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes(shape, dtype, border):
    for last in (True, False):
        check(in_layout(numbers(*shape, dtype=dtype), last), border)
    check(numbers(*shape, dtype=dtype).transpose(1, 2).contiguous().transpose(1, 2), border)


@torch.no_grad()
def test_the_reference_is_what_the_sampler_convolves():
    sampler, seen = WanResample(4, "downsample2d"), []
    sampler.resample[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = numbers(2, 4, 3, 6, 4, dtype=torch.float32)
    sampler(x)
    assert torch.equal(seen[0], bordered_frames.reference(x, 1).transpose(1, 2).flatten(0, 1))


REASONS = {
    "fp16": ("x is torch.float16; the kernel needs torch.bfloat16 or torch.float32", lambda x: (x.half(), 1)),
    "dimensions": (
        "x has shape [4, 2, 6, 5]; the kernel needs [B, C, T, H, W] with at least one element",
        lambda x: (x[0], 1),
    ),
    "border": ("border is -1; the kernel needs 0 or more", lambda x: (x, -1)),
    "sample": (
        "a sample of the result has 2147581953 elements; the kernel needs fewer than 2147483648",
        lambda _: (torch.empty(1, 1, 1, 2**15, 2**16, dtype=torch.bfloat16, device="meta"), 1),
    ),
}


@pytest.mark.parametrize(("expected_reason", "make"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, make):
    assert expected_reason == bordered_frames.reject_reason(*make(numbers(1, 4, 2, 6, 5)))


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    assert "x is on cpu; the kernel needs a CUDA device" == bordered_frames.reject_reason(numbers(1, 4, 2, 6, 5), 1)


def test_the_operator_is_functional_and_has_a_fake():
    x = numbers(2, 4, 3, 6, 5)
    assert torch.equal(bits(bordered_frames.fused(x, 1)), bits(torch.ops.fuseproof.bordered_frames(x, 1)))
    torch.library.opcheck(
        torch.ops.fuseproof.bordered_frames.default, (x, 1), test_utils=("test_schema", "test_faketensor")
    )
    with FakeTensorMode() as mode:
        out = torch.ops.fuseproof.bordered_frames(mode.from_tensor(x), 1)
    assert bordered_frames.fused(x, 1).stride() == out.stride()


def test_traffic_counts_everything_once():
    assert 2 * (240 + 2 * 4 * 7 * 6) == bordered_frames.traffic_bytes(numbers(1, 4, 2, 6, 5), 1)
