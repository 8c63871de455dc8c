"""Row quantisation against its plain-torch definition, bit by bit: the interpreter has float64's tanh for the GELU."""

import pytest
import torch
import torch.nn.functional as F

from fuseproof.fastpaths.kernels import row_quantize

PARTS = {
    "plain": (3, 64, None),
    "plain-no-power-of-two": (3, 208, None),
    "plain-one-row": (1, 16, None),
    "mlp": (3, None, 96),
    "both": (2, 48, 160),
    "both-uneven-parts": (2, 40, 24),
}


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16() * 3


def parts(case, batch=1):
    count, plain, activated = PARTS[case]
    x = None if plain is None else rows(batch, count, plain)
    mlp = None if activated is None else rows(batch, count, activated, seed=1)
    return x, mlp


def bits(result):
    values, scale = result
    return values.view(torch.uint8), scale.view(torch.int32)


def model_of_gelu(mlp):
    """R(gelu_tanh) with a correctly rounded tanh: after rounding to bf16 the card's equals it, CPU eager's does not."""
    x = mlp.float()
    wide = x.double()
    inner = 0.7978845834732056 * (wide * wide * wide * 0.044714998453855515 + wide).float()
    return (0.5 * x * (1.0 + torch.tanh(inner.double()).float())).bfloat16()


@pytest.fixture(autouse=True)
def exact_gelu(monkeypatch):
    monkeypatch.setattr(row_quantize.F, "gelu", lambda mlp, approximate: model_of_gelu(mlp))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("case", PARTS)
def test_values_and_scales_are_those_of_the_reference(case, batch):
    x, mlp = parts(case, batch)
    assert row_quantize.reject_reason(x, mlp) is None
    expected, found = bits(row_quantize.reference(x, mlp)), bits(row_quantize.fused(x, mlp))
    assert torch.equal(expected[1], found[1])
    if mlp is None:
        assert torch.equal(expected[0], found[0])
    else:  # one bf16 step of the GELU can move a value over an edge of e4m3: next to never, and by one step
        differing = (expected[0].int() - found[0].int()).abs()
        assert 1 >= int(differing.max())
        assert 0.01 >= float((differing > 0).float().mean())


def test_values_times_scale_are_the_row():
    x = rows(1, 4, 128)
    values, scale = row_quantize.fused(x)
    error = (values.float() * scale - x.float()).abs()
    allowed = torch.maximum(x.float().abs() / 16, x.float().abs().amax(-1, keepdim=True) / 458752)
    assert bool((error <= allowed * 1.000001).all())
    assert 448.0 == float(values.float().abs().amax(-1).min()), "every row uses the whole range"


def test_strided_rows_are_read_where_they_lie():
    wide = rows(2, 3, 160)
    x, mlp = wide[..., 32:64], wide[..., 64:128]
    expected = bits(row_quantize.fused(x.contiguous(), mlp.contiguous()))
    found = bits(row_quantize.fused(x, mlp))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


SPECIAL_ROWS = {
    "zeros": torch.zeros(32),
    "negative-zeros": -torch.zeros(32),
    "subnormal": torch.full((32,), 9.2e-41),
    "near-overflow": torch.full((32,), 3.3e38),
    "one-large-value": torch.cat([torch.full((31,), 1e-3), torch.tensor([1e4])]),
    "ties": torch.cat([torch.tensor([448.0]), torch.arange(31) * 0.5 + 16.5]),
}


@pytest.mark.parametrize("name", SPECIAL_ROWS)
def test_special_rows(name):
    x = SPECIAL_ROWS[name].bfloat16().view(1, 1, 32)
    expected, found = row_quantize.reference(x), row_quantize.fused(x)
    assert all(torch.equal(a, b) for a, b in zip(bits(expected), bits(found), strict=True))
    assert bool(torch.isfinite(found[0].float() * found[1]).all())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_gives_products_that_are_not_finite(value):
    x = rows(1, 2, 32)
    x[0, 1, 5] = value
    values, scale = row_quantize.fused(x)
    product = (values.float() * scale).sum(-1)
    assert [True, False] == torch.isfinite(product)[0].tolist()


def test_inputs_stay_and_a_second_launch_gives_the_same():
    x, mlp = parts("both")
    before = x.clone(), mlp.clone()
    first, second = bits(row_quantize.fused(x, mlp)), bits(row_quantize.fused(x, mlp))
    assert torch.equal(before[0], x)
    assert torch.equal(before[1], mlp)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


REASONS = {
    "nothing": ("x and mlp are both None", None, None),
    "dtype": ("x is float32; the kernel needs bfloat16", torch.zeros(1, 2, 16), None),
    "dimensions": ("x has 2 dimensions; the kernel needs 3", rows(2, 16), None),
    "empty": ("x has shape [1, 0, 16]", rows(1, 0, 16), None),
    "rows-differ": ("mlp has shape [1, 3, 16]; the kernel needs [1, 2, 16]", rows(1, 2, 16), rows(1, 3, 16)),
    "columns-apart": ("x has strides [64, 32, 2]", rows(1, 2, 32)[..., ::2], None),
    "unaligned": ("x starts 2 bytes past", rows(1, 2, 32)[..., 1:17], None),
    "width": ("rows are 40 wide; FP8 matmuls need a multiple of 16", rows(1, 2, 40), None),
    "width-of-both": ("rows are 24 wide", rows(1, 2, 16), rows(1, 2, 8)),
    "too-wide": ("mlp is 16400 wide; the kernel holds at most 16384", None, rows(1, 1, 16400)),
}


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name):
    expected, x, mlp = REASONS[name]
    assert expected in row_quantize.reject_reason(x, mlp)


@pytest.mark.parametrize(
    ("expected", "capability"),
    [(None, (9, 0)), (None, (8, 9)), ("the device is sm_80; e4m3 needs sm_89 or newer", (8, 0))],
    ids=["sm_90", "sm_89", "sm_80"],
)
def test_cards_without_e4m3_decline(monkeypatch, expected, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert expected == row_quantize.capability_reason(torch.device("cuda", 0))


def test_bytes_count_everything_once():
    x, mlp = rows(2, 3, 48), rows(2, 3, 160)
    assert 2 * 3 * (48 + 160) * 3 + 2 * 3 * 4 == row_quantize.traffic_bytes(x, mlp)


def test_the_operator_is_the_kernel_and_its_fake_knows_the_shapes():
    x, mlp = parts("both")
    assert all(
        torch.equal(a, b)
        for a, b in zip(bits(row_quantize.fused(x, mlp)), bits(torch.ops.fuseproof.row_quantize(x, mlp)), strict=True)
    )
    with pytest.raises(ValueError, match="rows are 40 wide"):
        torch.ops.fuseproof.row_quantize(rows(1, 2, 40), None)
    values, scale = torch.ops.fuseproof.row_quantize(x.to("meta"), mlp.to("meta"))
    assert ((1, 2, 208), torch.float8_e4m3fn) == (tuple(values.shape), values.dtype)
    assert ((1, 2, 1), torch.float32) == (tuple(scale.shape), scale.dtype)


def test_the_reference_is_eager_gelu_and_cat(monkeypatch):
    monkeypatch.undo()
    x, mlp = parts("both")
    row = torch.cat([x, F.gelu(mlp, approximate="tanh")], dim=-1)
    assert all(torch.equal(a, b) for a, b in zip(
        bits(row_quantize.reference(row)), bits(row_quantize.reference(x, mlp)), strict=True
    ))  # fmt: skip
