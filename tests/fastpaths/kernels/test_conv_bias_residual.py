"""The interpreted epilogue against the eager chain: pointwise bf16 additions, which round alike everywhere."""

import math

import pytest
import torch
from diffusers.models.resnet import ResnetBlock2D
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import conv_bias_residual

SHAPES = {
    "one-element": (1, 1, 1, 1),
    "odd": (2, 6, 5, 7),
    "two-blocks-of-positions": (1, 2, 50, 90),
    "two-blocks-of-channels": (1, 70, 2, 6),
}
PARTS = {"bias": (), "residual": ("residual",), "shortcut": ("residual", "residual_bias")}


def bits(tensor):
    return tensor.contiguous().view(torch.int16)


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def inputs(shape, parts=()):
    generator = torch.Generator().manual_seed(0)
    all_inputs = {
        "x": torch.randn(shape, generator=generator),
        "bias": torch.randn(shape[1], generator=generator),
        "residual": torch.randn(shape, generator=generator),
        "residual_bias": torch.randn(shape[1], generator=generator),
    }
    return {name: value.bfloat16() for name, value in all_inputs.items() if name in ("x", "bias", *parts)}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes(shape, parts):
    arguments = inputs(shape, parts)
    before = {name: value.clone() for name, value in arguments.items()}
    assert conv_bias_residual.reject_reason(**arguments) is None
    wanted = conv_bias_residual.reference(**arguments)
    out = torch.full(shape, float("nan"), dtype=torch.bfloat16)
    assert conv_bias_residual.fused(**arguments, out=out) is out
    assert torch.equal(bits(wanted), bits(out))
    assert all(torch.equal(bits(before[name]), bits(arguments[name])) for name in arguments)


LAYOUTS = {
    "convolution": (("residual",), ("x",)),
    "convolution-and-shortcut": (("residual", "residual_bias"), ("x", "residual")),
    "residual-alone": (("residual",), ("residual",)),
    "no-residual": ((), ("x",)),
}


@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (1, 70, 2, 6)], ids=["odd", "two-blocks-of-channels"])
@pytest.mark.parametrize(("parts", "turned"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_result_has_the_layout_of_the_residual(shape, parts, turned):
    arguments = inputs(shape, parts)
    wanted = conv_bias_residual.reference(**arguments)
    arguments.update({name: channels_last(arguments[name]) for name in turned})
    assert conv_bias_residual.reject_reason(**arguments) is None
    expected = conv_bias_residual.reference(**arguments)
    out = conv_bias_residual.fused(**arguments)
    assert expected.stride() == out.stride()
    assert torch.equal(bits(wanted), bits(expected))
    assert torch.equal(bits(wanted), bits(out))


def test_attention_leaves_a_stride_of_its_own():
    """diffusers' attention turns [1, HW, C] back by a view, whose first stride is not the size of a sample."""
    arguments = inputs((1, 4, 6, 5), ("residual",))
    view = arguments["residual"].flatten(2).transpose(1, 2).contiguous().transpose(1, 2).reshape(1, 4, 6, 5)
    assert (4, 1, 20, 4) == view.stride()
    arguments["residual"] = view
    out = conv_bias_residual.fused(**arguments)
    assert view.stride() == conv_bias_residual.reference(**arguments).stride() == out.stride()
    assert torch.equal(bits(conv_bias_residual.reference(**arguments)), bits(out))


@pytest.mark.parametrize("target", ["x", "residual"])
def test_in_place_and_the_same_bits_twice(target):
    arguments = inputs((1, 4, 6, 5), ("residual",))
    wanted = conv_bias_residual.reference(**arguments)
    assert torch.equal(bits(wanted), bits(conv_bias_residual.fused(**arguments)))
    assert conv_bias_residual.fused(**arguments, out=arguments[target]) is arguments[target]
    assert torch.equal(bits(wanted), bits(arguments[target]))


@pytest.mark.parametrize("factor", [2.0, -0.5, math.sqrt(2)])
def test_a_factor_is_multiplied_by_as_its_reciprocal(factor):
    arguments = inputs((1, 4, 6, 5), ("residual",))
    total = conv_bias_residual.reference(**arguments).float()
    wanted = (total * (torch.tensor(1.0) / torch.tensor(factor))).bfloat16()
    assert torch.equal(bits(wanted), bits(conv_bias_residual.fused(**arguments, scale_factor=factor)))


def test_values_at_the_edges():
    """Signed zeros, subnormals, ties, the largest numbers: every pair of them, and a bias among them."""
    patterns = [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x3F80, 0x3F81, 0xBF80, 0x3B80, 0x3C00, 0x7F7F, 0xFF7F]
    values = torch.tensor(patterns, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = values.view(1, 1, -1, 1).expand(1, 13, 13, 13).contiguous()
    residual = values.view(1, 1, 1, -1).expand(1, 13, 13, 13).contiguous()
    wanted = conv_bias_residual.reference(x, values, residual)
    actual = conv_bias_residual.fused(x, values, residual)
    assert torch.equal(bits(wanted), bits(actual))
    assert 1 == int(((wanted == 0) & (bits(wanted) == -32768)).sum())


def test_the_reference_is_the_end_of_a_residual_block():
    torch.manual_seed(0)
    block = ResnetBlock2D(in_channels=4, out_channels=6, temb_channels=None, groups=2).bfloat16().eval()
    x = torch.randn(1, 4, 5, 7).bfloat16()
    with torch.no_grad():
        hidden = block.conv2(block.nonlinearity(block.norm2(block.conv1(block.nonlinearity(block.norm1(x))))))
        zero = torch.zeros(6, dtype=torch.bfloat16)
        wanted = conv_bias_residual.reference(hidden, zero, block.conv_shortcut(x), None, block.output_scale_factor)
        assert torch.equal(bits(block(x, None)), bits(wanted))


REASONS = {
    "fp32": ("x is torch.float32; the kernel needs torch.bfloat16", {"x": torch.Tensor.float}),
    "three-dimensions": (
        "x has shape [4, 6, 5]; the kernel needs [N, C, H, W] with at least one element",
        {"x": lambda x: x[0]},
    ),
    "strides": (
        "x has strides [120, 30, 1, 6]; the kernel needs a contiguous or channels-last tensor",
        {"x": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3)},
    ),
    "bias-dtype": ("bias is float32; the kernel needs bfloat16", {"bias": torch.Tensor.float}),
    "residual-shape": (
        "residual is [1, 4, 6, 4] torch.bfloat16 on cpu; the kernel needs a residual like x",
        {"residual": lambda r: r[..., 1:].contiguous()},
    ),
    "residual-strides": (
        "residual has strides [120, 30, 1, 6]; the kernel needs a contiguous or channels-last tensor",
        {"residual": lambda r: r.transpose(2, 3).contiguous().transpose(2, 3)},
    ),
    "residual-bias-shape": ("residual_bias has shape [3]; the kernel needs [4]", {"residual_bias": lambda b: b[:3]}),
    "residual-bias-alone": (
        "residual_bias without residual; the kernel adds it to one",
        {"residual": lambda _: None},
    ),
    "factor-zero": ("scale_factor is 0; the kernel needs another number", {"scale_factor": lambda _: 0.0}),
    "factor-without-residual": (
        "scale_factor is 2.0 without a residual; the kernel needs 1",
        {"residual": lambda _: None, "residual_bias": lambda _: None, "scale_factor": lambda _: 2.0},
    ),
    "out-dtype": (
        "out is [1, 4, 6, 5] torch.float32 on cpu; the kernel needs an out like x",
        {"out": lambda _: torch.empty(1, 4, 6, 5)},
    ),
    "out-strides": (
        "out has strides [120, 1, 20, 4]; the kernel needs torch.contiguous_format",
        {"out": lambda _: channels_last(torch.empty(1, 4, 6, 5).bfloat16())},
    ),
    "out-is-channels-last-x": (
        "out is x; the kernel needs another tensor where the layout changes",
        {"x": channels_last, "out": lambda _: ...},
    ),
}


@pytest.mark.parametrize(("expected_reason", "changes"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, changes):
    arguments = inputs((1, 4, 6, 5), ("residual", "residual_bias"))
    for name, change in changes.items():
        arguments[name] = change(arguments.get(name))
    if arguments.get("out") is ...:
        x = arguments["x"]
        arguments["out"] = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), 0, x.shape)
    assert expected_reason == conv_bias_residual.reject_reason(**arguments)


def test_sizes_are_limited():
    x = torch.empty(1, 65536, 1, 2, dtype=torch.bfloat16, device="meta")
    reason = "x has 65536 channels in all samples together; the kernel needs at most 65535"
    assert reason == conv_bias_residual.reject_reason(x, x.new_empty(65536))
    x = torch.empty(1, 2, 2**15, 2**15, dtype=torch.bfloat16, device="meta")
    reason = "a sample has 2147483648 elements; the kernel needs fewer than 2147483648"
    assert reason == conv_bias_residual.reject_reason(x, x.new_empty(2))


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    expected_reason = "x is on cpu; the kernel needs a CUDA device"
    assert expected_reason == conv_bias_residual.reject_reason(**inputs((1, 4, 6, 5)))


def test_the_operator_is_functional_and_has_a_fake():
    arguments = inputs((1, 4, 6, 5), ("residual", "residual_bias"))
    wanted = conv_bias_residual.reference(**arguments)
    operator = torch.ops.fuseproof.conv_bias_residual
    assert torch.equal(bits(wanted), bits(operator(**arguments)))
    turned = (channels_last(arguments["x"]), arguments["bias"])
    for given in (tuple(arguments.values()), turned):
        torch.library.opcheck(operator.default, given, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        out = operator(*(mode.from_tensor(tensor) for tensor in turned))
    assert ((1, 4, 6, 5), (120, 30, 5, 1)) == (tuple(out.shape), out.stride())


def test_traffic_counts_everything_once():
    assert 2 * 240 + 8 == conv_bias_residual.traffic_bytes(**inputs((1, 4, 6, 5)))
    everything = inputs((1, 4, 6, 5), ("residual", "residual_bias"))
    assert 3 * 240 + 16 == conv_bias_residual.traffic_bytes(**everything)
