"""The interpreted epilogue against diffusers' shortcut of the residual up blocks, in integer bits."""

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import DupUp3D
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import duplicate_upsample_add
from tests.fastpaths.kernels.wan_models import bits, in_layout

BF16, FP32 = torch.bfloat16, torch.float32
DTYPES = {"fp32": (FP32, FP32), "bf16": (BF16, BF16), "autocast": (BF16, FP32)}
FORMS = {  # channels of the shortcut, frame factor, side factor, skip
    "residual": (6, 1, 1, 0),
    "doubled-in-space": (6, 1, 2, 0),
    "doubled-in-space-of-more-channels": (12, 1, 2, 0),
    "doubled": (6, 2, 2, 0),
    "doubled-first-chunk": (6, 2, 2, 1),
    "doubled-of-fewer-channels": (3, 2, 2, 0),
}


def numbers(*shape, dtype=FP32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def call_of(form=FORMS["doubled"], dtype=BF16, bias_dtype=BF16, *, last=True, shortcut_bias=True):
    channels, frame_factor, side_factor, skip = form
    shortcut = in_layout(numbers(2, channels, 2, 3, 2, dtype=dtype, seed=1), last)
    x = numbers(2, 6, 2 * frame_factor - skip, 3 * side_factor, 2 * side_factor, dtype=dtype)
    biases = numbers(6, dtype=bias_dtype, seed=2), numbers(channels, dtype=bias_dtype, seed=3)
    return (
        in_layout(x, last), biases[0], shortcut, biases[1] if shortcut_bias else None,
        frame_factor, side_factor, skip, last,
    )  # fmt: skip


def check(call):
    before = [one.clone() for one in call if isinstance(one, torch.Tensor)]
    assert duplicate_upsample_add.reject_reason(*call) is None
    wanted = duplicate_upsample_add.reference(*call)
    actual = duplicate_upsample_add.fused(*call)
    assert (wanted.stride(), wanted.dtype) == (actual.stride(), actual.dtype)
    assert torch.equal(bits(wanted), bits(actual))
    assert torch.equal(bits(actual), bits(duplicate_upsample_add.fused(*call)))
    after = [one for one in call if isinstance(one, torch.Tensor)]
    assert all(torch.equal(bits(one), bits(other)) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("last", [True, False], ids=["channels-last", "contiguous"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms(form, last):
    check(call_of(form, last=last))


@pytest.mark.parametrize(("dtype", "bias_dtype"), DTYPES.values(), ids=DTYPES)
def test_dtypes(dtype, bias_dtype):
    check(call_of(dtype=dtype, bias_dtype=bias_dtype))
    check(call_of(dtype=dtype, bias_dtype=bias_dtype, shortcut_bias=False))


def test_a_bias_alone_and_nothing_at_all():
    x, bias, *_ = call_of()
    check((x, bias, None, None, 1, 1, 0, True))
    check((x, None, None, None, 1, 1, 0, False))


def test_layouts_may_differ():
    x, bias, shortcut, *rest = call_of()
    check((x.transpose(1, 2).contiguous().transpose(1, 2), bias, shortcut.contiguous(), *rest))
    check((x, bias, shortcut.contiguous(), *rest[:-1], False))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_reference_is_what_the_block_computes(form):
    channels, frame_factor, side_factor, skip = form
    if frame_factor * side_factor == 1:
        pytest.skip("an ordinary sum")
    x, _, shortcut, _, *_ = call_of(form)
    wanted = x + DupUp3D(channels, 6, frame_factor, side_factor)(shortcut, first_chunk=bool(skip))
    actual = duplicate_upsample_add.reference(x, None, shortcut, None, frame_factor, side_factor, skip, False)
    assert torch.equal(bits(wanted), bits(actual))


REASONS = {
    "fp16": ("x is torch.float16; the kernel needs torch.bfloat16 or torch.float32", lambda x, *r: (x.half(), *r)),
    "dimensions": (
        "x has shape [6, 4, 6, 4]; the kernel needs [B, C, T, H, W] with at least one element",
        lambda x, *r: (x[0], *r),
    ),
    "bias": ("bias has shape [5]; the kernel needs 6 contiguous elements", lambda x, b, *r: (x, b[:5], *r)),
    "factors": ("factors are 0 and 2; the kernel needs 1 or more", lambda *c: (*c[:4], 0, *c[5:])),
    "skip": ("skip is 2; the kernel needs 0 to 1", lambda *c: (*c[:6], 2, *c[7:])),
    "shortcut-dtype": (
        "shortcut is torch.float32 on cpu; the kernel needs one like x",
        lambda x, b, s, *r: (x, b, s.float(), *r),
    ),
    "shortcut-shape": (
        "shortcut has shape [2, 6, 1, 3, 2], which does not make [2, 6, 4, 6, 4] by these factors",
        lambda x, b, s, *r: (x, b, s[:, :, :1], *r),
    ),
    "shortcut-channels": (
        "shortcut has shape [2, 5, 2, 3, 2], which does not make [2, 6, 4, 6, 4] by these factors",
        lambda x, b, s, *r: (x, b, s[:, :5], *r),
    ),
    "no-shortcut": (
        "shortcut_bias without shortcut; the kernel adds it to one",
        lambda x, b, _, *r: (x, b, None, *r),
    ),
}


@pytest.mark.parametrize(("expected_reason", "make"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, make):
    assert expected_reason == duplicate_upsample_add.reject_reason(*make(*call_of()))


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    assert "x is on cpu; the kernel needs a CUDA device" == duplicate_upsample_add.reject_reason(*call_of())


def test_the_operator_is_functional_and_has_a_fake():
    call = call_of()
    operator = torch.ops.fuseproof.duplicate_upsample_add
    assert torch.equal(bits(duplicate_upsample_add.fused(*call)), bits(operator(*call)))
    torch.library.opcheck(operator.default, call, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        out = operator(*(mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in call))
    assert call[0].stride() == out.stride()


def test_traffic_counts_everything_once():
    x, bias, shortcut, shortcut_bias, *rest = call_of()
    expected = 2 * (2 * x.numel() + shortcut.numel() + 6 + 6)
    assert expected == duplicate_upsample_add.traffic_bytes(x, bias, shortcut, shortcut_bias, *rest)
