"""The interpreted epilogue against diffusers' shortcut of the residual down blocks, in integer bits."""

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AvgDown3D
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import average_downsample_add
from tests.fastpaths.kernels.wan_models import bits, in_layout, mean

BF16, FP32 = torch.bfloat16, torch.float32
DTYPES = {"fp32": (FP32, FP32), "bf16": (BF16, BF16), "autocast": (BF16, FP32)}
FORMS = {  # channels of the shortcut and of the result, its frames, frame factor, side factor
    "halved": (3, 6, 4, 2, 2),
    "halved-odd-frames": (3, 6, 3, 2, 2),
    "halved-one-frame": (3, 6, 1, 2, 2),
    "halved-in-space": (6, 6, 2, 1, 2),
    "of-eight": (6, 6, 2, 2, 2),
    "of-six": (3, 4, 1, 2, 2),
    "of-one": (6, 6, 2, 1, 1),
    "of-two": (6, 3, 2, 1, 1),
}


@pytest.fixture(autouse=True)
def mean_of_the_card(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "mean", mean)


def numbers(*shape, dtype=FP32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def call_of(form=FORMS["halved"], dtype=BF16, bias_dtype=BF16, *, last=True, bias=True):
    own, channels, frames, frame_factor, side_factor = form
    shortcut = in_layout(numbers(2, own, frames, 3 * side_factor, 2 * side_factor, dtype=dtype, seed=1), last)
    x = in_layout(numbers(2, channels, -(-frames // frame_factor), 3, 2, dtype=dtype), last)
    return x, numbers(channels, dtype=bias_dtype, seed=2) if bias else None, shortcut, frame_factor, side_factor, last


def check(call):
    before = [one.clone() for one in call if isinstance(one, torch.Tensor)]
    assert average_downsample_add.reject_reason(*call) is None
    wanted = average_downsample_add.reference(*call)
    actual = average_downsample_add.fused(*call)
    assert (wanted.stride(), wanted.dtype) == (actual.stride(), actual.dtype)
    assert torch.equal(bits(wanted), bits(actual))
    assert torch.equal(bits(actual), bits(average_downsample_add.fused(*call)))
    after = [one for one in call if isinstance(one, torch.Tensor)]
    assert all(torch.equal(bits(one), bits(other)) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("last", [True, False], ids=["channels-last", "contiguous"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms(form, last):
    check(call_of(form, last=last))


@pytest.mark.parametrize(("dtype", "bias_dtype"), DTYPES.values(), ids=DTYPES)
def test_dtypes(dtype, bias_dtype):
    check(call_of(dtype=dtype, bias_dtype=bias_dtype))
    check(call_of(FORMS["halved-odd-frames"], dtype, bias_dtype, bias=False))


def test_layouts_may_differ():
    x, bias, shortcut, *rest = call_of()
    check((x.transpose(1, 2).contiguous().transpose(1, 2), bias, shortcut.contiguous(), *rest))
    check((x, bias, shortcut.contiguous(), *rest[:-1], False))


def test_zeros_lose_their_sign_as_in_a_sum_that_starts_at_zero():
    x = torch.full((1, 2, 1, 2, 2), -0.0)
    assert not torch.signbit(average_downsample_add.fused(x, None, x, 1, 1, False)).any()
    check((x, None, x, 1, 1, False))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_reference_is_what_the_block_computes(form):
    own, channels, _, frame_factor, side_factor = form
    x, _, shortcut, *_ = call_of(form)
    wanted = x + AvgDown3D(own, channels, frame_factor, side_factor)(shortcut)
    actual = average_downsample_add.reference(x, None, shortcut, frame_factor, side_factor, True)
    assert torch.equal(bits(wanted), bits(actual))


def test_a_frame_too_late_would_be_seen(monkeypatch):
    call = call_of(FORMS["halved-odd-frames"])
    right = average_downsample_add.fused(*call)
    shifted = torch.nn.functional.pad(call[2], (0, 0, 0, 0, 0, 1))
    wrong = average_downsample_add.fused(*call[:2], shifted, *call[3:])
    assert not torch.equal(bits(right), bits(wrong))


REASONS = {
    "fp16": ("x is torch.float16; the kernel needs torch.bfloat16 or torch.float32", lambda x, *r: (x.half(), *r)),
    "dimensions": (
        "x has shape [6, 2, 3, 2]; the kernel needs [B, C, T, H, W] with at least one element",
        lambda x, *r: (x[0], *r),
    ),
    "bias": ("bias has shape [5]; the kernel needs 6 contiguous elements", lambda x, b, *r: (x, b[:5], *r)),
    "factors": ("factors are 0 and 2; the kernel needs 1 or more", lambda *c: (*c[:3], 0, *c[4:])),
    "shortcut-dtype": (
        "shortcut is torch.float32 on cpu; the kernel needs one like x",
        lambda x, b, s, *r: (x, b, s.float(), *r),
    ),
    "shortcut-shape": (
        "shortcut has shape [2, 3, 2, 6, 4], which does not make [2, 6, 2, 3, 2] by these factors",
        lambda x, b, s, *r: (x, b, s[:, :, :2], *r),
    ),
    "groups": (
        "means are of 72 elements; the kernel needs at most 64",
        lambda x, b, s, *r: (x[:, :1], None, s.repeat(1, 3, 1, 1, 1), *r),
    ),
}


@pytest.mark.parametrize(("expected_reason", "make"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, make):
    assert expected_reason == average_downsample_add.reject_reason(*make(*call_of()))


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    assert "x is on cpu; the kernel needs a CUDA device" == average_downsample_add.reject_reason(*call_of())


def test_the_operator_is_functional_and_has_a_fake():
    call = call_of()
    operator = torch.ops.fuseproof.average_downsample_add
    assert torch.equal(bits(average_downsample_add.fused(*call)), bits(operator(*call)))
    torch.library.opcheck(operator.default, call, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        out = operator(*(mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in call))
    assert call[0].stride() == out.stride()


def test_traffic_counts_everything_once():
    x, bias, shortcut, *rest = call_of()
    expected = 2 * (2 * x.numel() + shortcut.numel() + 6)
    assert expected == average_downsample_add.traffic_bytes(x, bias, shortcut, *rest)
