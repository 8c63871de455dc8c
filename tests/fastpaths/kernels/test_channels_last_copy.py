"""The interpreted copy against diffusers' samplers; nothing is computed, so every bit must arrive."""

import pytest
import torch
from diffusers.models.downsampling import Downsample2D
from diffusers.models.upsampling import Upsample2D
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import channels_last_copy

SHAPES = {
    "less-than-a-tile": (1, 3, 2, 2),
    "odd": (2, 6, 5, 7),
    "two-tiles-of-channels": (1, 70, 2, 6),
    "two-tiles-of-positions": (1, 3, 30, 40),
}
FORMS = {"as-it-is": (1, 0), "doubled": (2, 0), "bordered": (1, 1), "doubled-and-bordered": (2, 3)}


def bits(tensor):
    return tensor.contiguous().view(torch.int16)


def patterns(*shape):
    """Every kind of bf16 number; torch's own interpolation on a CPU changes the payload of a NaN."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, generator=generator).view(torch.bfloat16)
    return torch.where(x.isnan(), torch.tensor(-0.0, dtype=x.dtype), x)


@pytest.mark.parametrize(("factor", "border"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes(shape, factor, border):
    x = patterns(*shape)
    before = x.clone()
    assert channels_last_copy.reject_reason(x, factor, border) is None
    wanted = channels_last_copy.reference(x, factor, border)
    actual = channels_last_copy.fused(x, factor, border)
    assert wanted.stride() == actual.stride()
    assert torch.equal(bits(wanted), bits(actual))
    assert torch.equal(bits(before), bits(x))


@torch.no_grad()
@pytest.mark.parametrize(
    ("sampler", "factor", "border"),
    [
        pytest.param(Upsample2D(4, use_conv=True), 2, 0, id="Upsample2D"),
        pytest.param(Downsample2D(4, use_conv=True, padding=0), 1, 1, id="Downsample2D"),
    ],
)
def test_the_reference_is_what_the_samplers_convolve(sampler, factor, border):
    seen = []
    sampler.conv.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.randn(1, 4, 6, 5)
    sampler(x)
    assert torch.equal(seen[0], channels_last_copy.reference(x, factor, border))


REASONS = {
    "fp32": ("x is torch.float32; the kernel needs torch.bfloat16", lambda x: (x.float(),)),
    "three-dimensions": (
        "x has shape [4, 6, 5]; the kernel needs [N, C, H, W] with at least one element",
        lambda x: (x[0],),
    ),
    "strides": ("x has strides [120, 30, 1, 6]; the kernel needs a contiguous x", lambda x: (turned_rows(x),)),
    "factor": ("factor is 3; the kernel needs 1 or 2", lambda x: (x, 3)),
    "border": ("border is -1; the kernel needs 0 or more", lambda x: (x, 1, -1)),
    "samples": (
        "x has 65536 samples; the kernel needs at most 65535",
        lambda _: (torch.empty(65536, 1, 1, 1, dtype=torch.bfloat16, device="meta"),),
    ),
    "sample": (
        "a sample of the result has 2147483648 elements; the kernel needs fewer than 2147483648",
        lambda _: (torch.empty(1, 2, 2**14, 2**14, dtype=torch.bfloat16, device="meta"), 2),
    ),
}


def turned_rows(x):
    return x.transpose(2, 3).contiguous().transpose(2, 3)


@pytest.mark.parametrize(("expected_reason", "make"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, make):
    assert expected_reason == channels_last_copy.reject_reason(*make(patterns(1, 4, 6, 5)))


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    assert "x is on cpu; the kernel needs a CUDA device" == channels_last_copy.reject_reason(patterns(1, 4, 6, 5))


def test_the_operator_is_functional_and_has_a_fake():
    x = patterns(1, 4, 6, 5)
    wanted = channels_last_copy.reference(x, 2, 1)
    assert torch.equal(bits(wanted), bits(torch.ops.fuseproof.channels_last_copy(x, 2, 1)))
    operator = torch.ops.fuseproof.channels_last_copy.default
    torch.library.opcheck(
        operator, (torch.randn(1, 4, 6, 5).bfloat16(), 2, 1), test_utils=("test_schema", "test_faketensor")
    )
    with FakeTensorMode() as mode:
        out = torch.ops.fuseproof.channels_last_copy(mode.from_tensor(x), 2)
    assert ((1, 4, 12, 10), (480, 1, 40, 4)) == (tuple(out.shape), out.stride())


def test_traffic_counts_everything_once():
    assert 2 * (120 + 480) == channels_last_copy.traffic_bytes(patterns(1, 4, 6, 5), 2)
    assert 2 * (120 + 4 * 7 * 6) == channels_last_copy.traffic_bytes(patterns(1, 4, 6, 5), 1, 1)
