"""The interpreted padded input and next cache, against diffusers' chain and a model of the card's order of sums."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import causal_conv_input, channel_norms
from fuseproof.fastpaths.kernels.channel_norms import Order, order_of
from tests.fastpaths.kernels import wan_models
from tests.fastpaths.kernels.wan_models import bits, in_layout

BF16, FP32 = torch.bfloat16, torch.float32
H200 = (132, 2048)
DTYPES = {  # x, gamma, result
    "fp32": (FP32, FP32, False),
    "bf16": (BF16, BF16, False),
    "autocast": (BF16, FP32, True),
    "autocast-of-fp32": (FP32, FP32, True),
}
ORDERS = {
    "one-thread": (1, 1, 0),
    "four-lanes": (4, 1, 0),
    "two-blocks": (4, 2, 0),
    "three-blocks": (4, 3, 0),
    "six-blocks": (4, 6, 0),
    "sixteen-blocks": (4, 16, 0),
    "sixteen-lanes": (16, 1, 0),
    "a-warp-a-row": (32, 1, 1),
}
CACHES = {"none": 0, "one-frame": 1, "two-frames": 2}


@pytest.fixture(autouse=True)
def exp_of_the_interpreter(monkeypatch):
    monkeypatch.setattr(F, "silu", wan_models.silu)


def numbers(*shape, dtype=FP32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def call_of(
    shape=(1, 7, 2, 3, 5),
    x_dtype=BF16,
    gamma_dtype=BF16,
    to_bf16=False,
    cached=1,
    order=(1, 1, 0),
    *,
    last=True,
    bias=True,
):
    samples, channels, _, *plane = shape
    x = in_layout(numbers(*shape, dtype=x_dtype), last)
    gamma = numbers(channels, 1, 1, 1, dtype=gamma_dtype, seed=1)
    x_bias = numbers(channels, dtype=gamma_dtype, seed=2) if bias else None
    cache = in_layout(numbers(samples, channels, cached, *plane, dtype=x_dtype, seed=3), last) if cached else None
    return x, gamma, x_bias, cache, None, channels**0.5, True, 2, 1, 1, last, to_bf16, order


def with_denominator(call):
    """The same call with the norm that the model of the card's order gives."""
    x, _, x_bias, _, _, *_, order = call
    hidden = x if x_bias is None else x + x_bias.to(x.dtype).view(-1, 1, 1, 1)
    norm = wan_models.norm(hidden.float(), *order).clamp_min(channel_norms.EPS).contiguous()
    return (*call[:4], norm, *call[5:])


def check(call):
    before = [one.clone() for one in call if isinstance(one, torch.Tensor)]
    assert causal_conv_input.reject_reason(*call) is None
    wanted = causal_conv_input.reference(*(call if call[1] is None else with_denominator(call)))
    actual = causal_conv_input.fused(*call)
    for one, other in zip(wanted, actual, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.equal(bits(one), bits(other))
        layout = torch.channels_last_3d if call[10] else torch.contiguous_format
        assert other.is_contiguous(memory_format=layout)
    again = causal_conv_input.fused(*call)
    assert all(torch.equal(bits(one), bits(other)) for one, other in zip(actual, again, strict=True))
    after = [one for one in call if isinstance(one, torch.Tensor)]
    assert all(torch.equal(bits(one), bits(other)) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("last", [True, False], ids=["channels-last", "contiguous"])
@pytest.mark.parametrize(("x_dtype", "gamma_dtype", "to_bf16"), DTYPES.values(), ids=DTYPES)
def test_dtypes_and_layouts(x_dtype, gamma_dtype, to_bf16, last):
    check(call_of(x_dtype=x_dtype, gamma_dtype=gamma_dtype, to_bf16=to_bf16, last=last))


@pytest.mark.parametrize("frames", [1, 2, 4])
@pytest.mark.parametrize("cached", CACHES.values(), ids=CACHES)
def test_frames_and_caches(cached, frames):
    check(call_of((2, 3, frames, 2, 3), cached=cached))


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_orders_of_the_sum(order):
    check(call_of((1, 140, 1, 2, 3), FP32, FP32, order=order, bias=False))


def test_the_orders_are_not_all_the_same():
    x = numbers(1, 1024, 40)
    norms = {order: wan_models.norm(x, *order) for order in ORDERS.values()}
    assert len(ORDERS) == len({tuple(norm.flatten().tolist()) for norm in norms.values()})


@pytest.mark.parametrize("cached", CACHES.values(), ids=CACHES)
def test_without_a_norm_bits_are_moved(cached):
    x, _, _, cache, _, *rest = call_of(cached=cached)
    check((x, None, None, cache, None, 1.0, False, *rest[2:]))
    moved = causal_conv_input.fused(x, None, None, cache, None, 1.0, False, *rest[2:])[0]
    assert torch.equal(bits(x), bits(moved[:, :, 2:, 1:-1, 1:-1]))


def test_memory_in_the_order_of_frames():
    """What the sampler before returns: [B, T, C, H, W] seen as [B, C, T, H, W]."""
    x, *rest = call_of((1, 7, 2, 3, 5))
    check((x.transpose(1, 2).contiguous().transpose(1, 2), *rest))


def test_a_cache_of_another_dtype_and_layout():
    x, gamma, x_bias, cache, *rest = call_of(to_bf16=True)
    check((x, gamma, x_bias, cache.float().contiguous(), *rest))


def test_zero_norms_are_clamped():
    x, gamma, _, cache, *rest = call_of(x_dtype=FP32, gamma_dtype=FP32)
    x[:, :, 0] = 0.0
    check((x, gamma, None, cache, *rest))


def test_other_fronts_and_no_border():
    x, gamma, x_bias, cache, denominator, scale, silu, _, _, _, *rest = call_of()
    check((x, gamma, x_bias, cache, denominator, scale, silu, 2, 0, 0, *rest))
    check((x, gamma, x_bias, None, denominator, scale, silu, 1, 0, 1, *rest))


SIZES = {  # samples, channels, positions -> lanes, blocks; on an H200
    "first-level": ((1, 1024, 30 * 52), Order(4, 16)),
    "second-level": ((1, 1024, 2 * 60 * 104), Order(4, 16)),
    "third-level-first-norm": ((1, 1024, 4 * 120 * 208), Order(4, 3)),
    "third-level": ((1, 512, 4 * 120 * 208), Order(4, 1)),
    "last-level": ((1, 256, 4 * 240 * 416), Order(4, 1)),
    "wan-2.1": ((1, 96, 4 * 480 * 832), Order(4, 1)),
    "not-by-four": ((1, 384, 15 * 13), Order(16, 1)),
    "few-channels": ((1, 32, 4 * 60 * 104), Order(1, 1)),
    "large": ((1, 512, 4 * 1024 * 1024), None),
    "one-position": ((1, 512, 1), None),
}


def test_the_order_of_rows():
    assert Order(32, 1, 1) == channel_norms.order_of_rows(1024, 1560)
    assert [None] * 3 == [channel_norms.order_of_rows(*sizes) for sizes in ((96, 1560), (130, 1560), (1024, 15))]


@pytest.mark.parametrize(("sizes", "expected"), SIZES.values(), ids=SIZES)
def test_the_order_of_real_sizes(sizes, expected):
    assert expected == order_of(*sizes, *H200)


REASONS = {
    "fp16": ("x is torch.float16; the kernel needs torch.bfloat16 or torch.float32", lambda x, *r: (x.half(), *r)),
    "dimensions": (
        "x has shape [7, 2, 3, 5]; the kernel needs [B, C, T, H, W] with at least one element",
        lambda x, *r: (x[0], *r),
    ),
    "gamma": ("gamma has shape [6, 1, 1, 1]; the kernel needs 7 contiguous elements", lambda x, g, *r: (x, g[:6], *r)),
    "x_bias": ("x_bias has shape [3]; the kernel needs 7 contiguous elements", lambda x, g, b, *r: (x, g, b[:3], *r)),
    "cache": (
        "cache has shape [1, 7, 3, 3, 5]; the kernel needs that of x with 1 or 2 frames",
        lambda x, g, b, _, *r: (x, g, b, torch.zeros(1, 7, 3, 3, 5), *r),
    ),
    "front": ("front is 3; the kernel needs 1 or 2", lambda *c: (*c[:7], 3, *c[8:])),
    "pads": ("pads are -1 and 1; the kernel needs 0 or more", lambda *c: (*c[:8], -1, *c[9:])),
    "no-norm": (
        "neither denominator nor order is given; the kernel needs one of them for a norm",
        lambda *c: (*c[:12], None),
    ),
}


@pytest.mark.parametrize(("expected_reason", "make"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, make):
    assert expected_reason == causal_conv_input.reject_reason(*make(*call_of()))


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    assert "x is on cpu; the kernel needs a CUDA device" == causal_conv_input.reject_reason(*call_of())


def test_the_operator_is_functional_and_has_a_fake():
    call = call_of(to_bf16=True)
    operands = (*call[:12], list(call[12]))
    operator = torch.ops.fuseproof.causal_conv_input
    pairs = zip(causal_conv_input.fused(*call), operator(*operands), strict=True)
    assert all(torch.equal(bits(one), bits(other)) for one, other in pairs)
    torch.library.opcheck(operator.default, operands, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in operands]
        out, following = operator(*fakes)
    assert ((1, 7, 4, 5, 7), (1, 7, 2, 3, 5)) == (tuple(out.shape), tuple(following.shape))


def test_traffic_counts_everything_once():
    moved = 7 * (2 * 15 + 15) * 2 + 2 * 7 * 2  # x and cache, gamma and bias
    assert moved + 7 * (4 * 35 + 2 * 15) * 2 == causal_conv_input.traffic_bytes(*call_of())
