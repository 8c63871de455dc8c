"""The interpreted kernels against a model of aten's order of additions, and the arithmetic that the model rests on."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import group_norm_silu, group_norm_statistics
from tests.fastpaths.kernels import cuda_order

EPS = 1e-6
STEPS = group_norm_statistics.STEPS
SHAPES = {
    "one-warp": ((1, 4, 6, 5), 2),
    "fewer-elements-than-lanes": ((1, 4, 3), 2),
    "three-samples": ((3, 2, 7), 1),
    "sixteen-warps": ((1, 2, 16, 32), 2),
    "chains-of-two-lengths": ((1, 2, 37, 29), 2),
    "three-pairs-of-batches": ((1, 2, 6144), 1),
    "a-pair-of-batches-and-a-rest": ((1, 1, 7000), 1),
    "a-group-of-primes": ((2, 5, 13), 5),
}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Short batches: the same code, and every branch of it, in fewer interpreted steps."""
    monkeypatch.setattr(group_norm_statistics, "STEPS", 2)


def bits(tensor):
    return tensor.contiguous().view(torch.int16)


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def inputs(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(shape, generator=generator) + torch.randn(
        shape[:2] + (1,) * (len(shape) - 2), generator=generator
    )
    weight = 1 + 0.3 * torch.randn(shape[1], generator=generator)
    bias = 0.3 * torch.randn(shape[1], generator=generator)
    return x.bfloat16(), weight.bfloat16(), bias.bfloat16()


def model(x, weight, bias, groups, silu=True, rounded_statistics=True):
    normed = cuda_order.group_norm(x, groups, weight, bias, EPS, rounded_statistics)
    return cuda_order.silu(normed) if silu else normed


@pytest.mark.parametrize(("shape", "groups"), SHAPES.values(), ids=SHAPES)
def test_shapes(shape, groups):
    x, weight, bias = inputs(shape)
    assert group_norm_silu.reject_reason(x, weight, bias, groups, EPS) is None
    wanted = model(x, weight, bias, groups, silu=False)
    assert torch.equal(bits(wanted), bits(group_norm_silu.fused(x, weight, bias, groups, EPS, False)))


@pytest.mark.parametrize("shape", [(1, 4, 6, 5), (1, 2, 37, 29)], ids=["one-warp", "sixteen-warps"])
def test_statistics_that_stay_fp32(shape):
    x, weight, bias = inputs(shape)
    wanted = model(x, weight, bias, 2, rounded_statistics=False)
    actual = group_norm_silu.fused(x, weight, bias, 2, EPS, rounded_statistics=False)
    assert torch.equal(bits(wanted), bits(actual))
    assert 0 < int((bits(wanted) != bits(model(x, weight, bias, 2))).sum())


def test_batches_of_the_length_in_use(monkeypatch):
    monkeypatch.setattr(group_norm_statistics, "STEPS", STEPS)
    x, weight, bias = inputs((1, 1, 400))
    assert torch.equal(bits(model(x, weight, bias, 1)), bits(group_norm_silu.fused(x, weight, bias, 1, EPS)))


LAYOUTS = {
    "rows-odd": ((2, 6, 5, 7), True, False),
    "rows-of-two-loads": ((1, 2, 3, 240), True, False),
    "tiles-odd": ((2, 6, 5, 7), True, True),
    "tiles-two-by-channels": ((1, 70, 2, 6), True, True),
    "tiles-two-by-positions": ((1, 2, 30, 70), False, True),
}


@pytest.mark.parametrize(("shape", "silu", "turned"), LAYOUTS.values(), ids=LAYOUTS)
def test_layouts(shape, silu, turned):
    x, weight, bias = inputs(shape)
    out = torch.full_like(x, float("nan"))
    out = channels_last(out) if turned else out
    before = x.clone()
    result = group_norm_silu.fused(x, weight, bias, 2, EPS, silu, turned, out=out)
    assert result is out
    assert torch.equal(bits(model(x, weight, bias, 2, silu)), bits(out))
    assert torch.equal(bits(before), bits(x))


def test_in_place_and_the_same_bits_twice():
    x, weight, bias = inputs((1, 4, 6, 5))
    wanted = model(x, weight, bias, 2)
    assert torch.equal(bits(wanted), bits(group_norm_silu.fused(x, weight, bias, 2, EPS)))
    assert group_norm_silu.fused(x, weight, bias, 2, EPS, out=x) is x
    assert torch.equal(bits(wanted), bits(x))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # infinities on the way are part of the arithmetic
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(torch.zeros(1, 2, 40), id="zeros"),
        pytest.param(torch.full((1, 2, 40), 3.0), id="constant"),
        pytest.param(1000 + torch.arange(80.0).reshape(1, 2, 40), id="large-mean"),
        pytest.param(1e-39 * torch.arange(80.0).reshape(1, 2, 40), id="subnormal"),
        pytest.param(1e18 * (torch.arange(80.0).reshape(1, 2, 40) - 40), id="variance-near-overflow"),
    ],
)
def test_values(values):
    x = values.bfloat16()
    _, weight, bias = inputs((1, 2, 40))
    assert torch.equal(bits(model(x, weight, bias, 1)), bits(group_norm_silu.fused(x, weight, bias, 1, EPS)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # infinities on the way are part of the arithmetic
def test_silu_over_every_finite_value():
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    affine = torch.tensor([1.0, 0.0]).view(2, 1)
    out = torch.empty_like(x)
    group_norm_silu._rows_kernel[(16, 1)](
        x, affine, out, 8192, 1, UNIT=8, BLOCK=4096, SILU=True, INTERPRETED=True, enable_fp_fusion=False
    )
    finite = x.isfinite() & (x.view(torch.int16) != -32768)  # 1 * -0 + 0 is +0, on both sides of the norm
    assert 65279 == int(finite.sum())
    assert 0 == int((bits(cuda_order.silu(x)) != bits(out))[finite].sum())


def test_the_model_is_a_group_norm():
    x, weight, bias = inputs((2, 6, 30, 31))
    wanted = F.group_norm(x.double(), 3, weight.double(), bias.double(), EPS)
    actual = cuda_order.group_norm(x, 3, weight, bias, EPS, rounded_statistics=False)
    assert torch.allclose(wanted, actual.double(), rtol=2**-8, atol=2**-8)


def test_the_quotient_from_a_reciprocal_is_correctly_rounded():
    """What the compiled kernel does in place of a division: two corrections with fma (its docstring's claim)."""
    generator = torch.Generator().manual_seed(0)
    count = torch.randint(1, 2**20 + 1, (2_000_000,), generator=generator).float()
    count[:8192] = torch.arange(1, 8193).float()
    exponent = torch.randint(-40, 40, count.shape, generator=generator).float()
    delta = torch.randn(count.shape, generator=generator) * 2**exponent
    inverse = (1 / count.double()).float()
    estimate = delta * inverse
    quotient = cuda_order.fma(cuda_order.fma(-count, estimate, delta), inverse, estimate)
    assert 0 < int((estimate != delta / count).sum())
    assert 0 == int((quotient != delta / count).sum())


def test_eps_is_rounded_as_aten_rounds_it():
    assert float(torch.tensor(1e-6, dtype=torch.bfloat16)) == group_norm_statistics.rounded_eps(1e-6)
    assert 1e-6 != group_norm_statistics.rounded_eps(1e-6)


@pytest.mark.parametrize("rounded_statistics", [True, False])
def test_torch_is_asked_whether_it_rounds_its_statistics(rounded_statistics, monkeypatch):
    def norm(x, groups, weight, bias, eps):
        return cuda_order.group_norm(x, groups, weight, bias, eps, rounded_statistics)

    monkeypatch.setattr(F, "group_norm", norm)
    assert rounded_statistics == group_norm_silu.rounds_statistics(torch.device("cpu"))


def test_the_reference_is_diffusers_expression():
    x, weight, bias = inputs((1, 4, 6, 5))
    norm = torch.nn.GroupNorm(2, 4, eps=EPS)
    norm.weight.data, norm.bias.data = weight, bias
    with torch.no_grad():
        wanted = torch.nn.SiLU()(norm(x))
        assert torch.equal(bits(wanted), bits(group_norm_silu.reference(x, weight, bias, 2, EPS)))
        assert torch.equal(bits(norm(x)), bits(group_norm_silu.reference(x, weight, bias, 2, EPS, False)))
        turned = group_norm_silu.reference(x, weight, bias, 2, EPS, True, True)
    assert turned.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(bits(wanted), bits(turned))


NEEDS_ELEMENTS = "the kernel needs [N, C, *] with at least one element"
REASONS = {
    "fp32": ("x is torch.float32; the kernel needs torch.bfloat16", {"x": torch.Tensor.float}),
    "strides": ("x has strides [120, 1, 20, 4]; the kernel needs a contiguous x", {"x": channels_last}),
    "two-dimensions": (f"x has shape [1, 4]; {NEEDS_ELEMENTS}", {"x": lambda x: x[:, :, 0, 0]}),
    "empty": (f"x has shape [0, 4, 6, 5]; {NEEDS_ELEMENTS}", {"x": lambda x: x[:0]}),
    "one-position": (
        "x has shape [1, 4, 1]; the kernel needs two positions or more per channel",
        {"x": lambda x: x[:, :, 0, :1].contiguous()},
    ),
    "weight-dtype": ("weight is float32; the kernel needs bfloat16", {"weight": torch.Tensor.float}),
    "bias-shape": ("bias has shape [3]; the kernel needs [4]", {"bias": lambda bias: bias[:3]}),
    "groups": ("groups is 3; the kernel needs a divisor of 4", {"groups": lambda _: 3}),
    "channels-last-of-three": (
        "x has 3 dimensions; channels_last needs 4",
        {"x": lambda x: x.flatten(2), "channels_last": lambda _: True},
    ),
    "out-is-x": (
        "out is x; the kernel needs another tensor where the layout changes",
        {"channels_last": lambda _: True, "out": lambda x: x},
    ),
    "out-dtype": (
        "out is [1, 4, 6, 5] torch.float32 on cpu; the kernel needs an out like x",
        {"out": torch.Tensor.float},
    ),
    "out-strides": (
        "out has strides [120, 1, 20, 4]; the kernel needs torch.contiguous_format",
        {"out": channels_last},
    ),
}


@pytest.mark.parametrize(("expected_reason", "changes"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, changes):
    x, weight, bias = inputs((1, 4, 6, 5))
    arguments = {"x": x, "weight": weight, "bias": bias, "groups": 2, "eps": EPS, "channels_last": False}
    for name, change in changes.items():
        arguments[name] = change(x if name == "out" else arguments[name])
    assert expected_reason == group_norm_silu.reject_reason(**arguments)


LARGE = {
    "rows": ((1, 65536, 2), 1, "x has 65536 channels in all samples together; the kernel needs at most 65535"),
    "sample": ((1, 2, 2**30), 1, "a sample has 2147483648 elements; the kernel needs fewer than 2147483648"),
    "group": ((1, 1, 2**29 + 1), 1, "a group has 536870913 elements; the kernel needs at most 536870912"),
}


@pytest.mark.parametrize(("shape", "groups", "expected_reason"), LARGE.values(), ids=LARGE)
def test_sizes_are_limited(shape, groups, expected_reason):
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    weight = x.new_empty(shape[1])
    assert expected_reason == group_norm_silu.reject_reason(x, weight, weight, groups, EPS)


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    x, weight, bias = inputs((1, 4, 6, 5))
    assert "x is on cpu; the kernel needs a CUDA device" == group_norm_silu.reject_reason(x, weight, bias, 2, EPS)


def test_the_operator_is_functional_and_has_a_fake():
    x, weight, bias = inputs((1, 4, 6, 5))
    wanted = model(x, weight, bias, 2)
    assert torch.equal(bits(wanted), bits(torch.ops.fuseproof.group_norm_silu(x, weight, bias, 2, EPS)))
    for turned in (False, True):
        arguments = (x, weight, bias, 2, EPS, True, turned)
        torch.library.opcheck(
            torch.ops.fuseproof.group_norm_silu.default, arguments, test_utils=("test_schema", "test_faketensor")
        )
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(tensor) for tensor in (x, weight, bias)]
        out = torch.ops.fuseproof.group_norm_silu(*fake, 2, EPS, True, True)
    assert ((1, 4, 6, 5), (120, 1, 20, 4)) == (tuple(out.shape), out.stride())


def test_traffic_reads_twice_and_writes_once():
    x, weight, bias = inputs((1, 4, 6, 5))
    assert 3 * 240 + 16 == group_norm_silu.traffic_bytes(x, weight, bias, 2, EPS)


@pytest.mark.parametrize(("unit", "positions"), [(8, 16384), (4, 16748), (2, 6), (1, 7)])
def test_the_width_of_a_load_divides_the_row(unit, positions):
    assert unit == group_norm_silu.unit_of(positions)


@pytest.mark.parametrize(("tile", "channels"), [((64, 64), 512), ((4, 1024), 3), ((1, 1024), 1)])
def test_tiles(tile, channels):
    assert tile == group_norm_silu.tile_of(channels)
