"""FP8 products on the CPU, whose row-wise ``_scaled_mm`` computes what the card's does; reasons of cards not here."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from fuseproof.fastpaths.kernels import row_quantize
from fuseproof.fastpaths.matmuls import fp8_linear


@pytest.fixture(autouse=True)
def quantise_in_plain_torch(monkeypatch):
    monkeypatch.setattr(row_quantize, "fused", row_quantize.reference)


def operands(rows, inputs, outputs):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((rows, inputs), (outputs, inputs)))
    bias = torch.randn(outputs, generator=generator).bfloat16()
    values, scale = (tensor.view(rows, -1) for tensor in row_quantize.fused(x.unsqueeze(0)))
    return (x, weight, bias), (values, scale, *fp8_linear.quantized_weight(weight), bias)


def relative(found, expected):
    return float((found.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize(
    "shape", [(7, 64, 32), (1, 16, 16), (3, 208, 48)], ids=["small", "smallest", "no-power-of-two"]
)
def test_the_product_is_the_one_of_what_was_quantised(shape):
    plain, quantised = operands(*shape)
    expected = fp8_linear.reference(*quantised)
    out = torch.full_like(expected, float("nan"))
    assert fp8_linear.fused(*quantised, out=out) is out
    assert torch.equal(fp8_linear.fused(*quantised), out)
    assert relative(out, expected) <= 2**-8, "one rounding to bf16"
    assert 0 < relative(out, F.linear(*plain)) <= 0.06


def test_weights_have_one_scale_an_output():
    (_, weight, _), (_, _, values, scale, _) = operands(2, 64, 32)
    assert ((32, 64), (1, 32)) == (tuple(values.shape), tuple(scale.shape))
    assert scale.is_contiguous()
    assert bool(
        ((values.float() * scale.t() - weight.float()).abs() <= weight.float().abs().amax(1)[:, None] / 16).all()
    )


def test_bytes_count_everything_once():
    _, quantised = operands(7, 64, 32)
    assert 7 * 64 + 32 * 64 + 4 * (7 + 32) + 2 * 32 + 2 * 7 * 32 == fp8_linear.traffic_bytes(*quantised)


@pytest.mark.parametrize(
    ("expected", "shape", "capability"),
    [
        (None, (3072, 3072), (9, 0)),
        (None, (3072, 15360), (8, 9)),
        ("the device is sm_80; e4m3 needs sm_89 or newer", (3072, 3072), (8, 0)),
        ("a weight has shape [3072, 40]; FP8 matmuls need multiples of 16", (3072, 40), (9, 0)),
        ("a weight has shape [24, 32]; FP8 matmuls need multiples of 16", (24, 32), (9, 0)),
        ("a weight has shape [32, 16400]; rows are quantised up to 16384 columns", (32, 16400), (9, 0)),
    ],
    ids=["sm_90", "sm_89", "sm_80", "odd-inputs", "odd-outputs", "too-wide"],
)
def test_reasons_of_cards_that_are_not_here(monkeypatch, expected, shape, capability):
    weight = SimpleNamespace(dtype=torch.bfloat16, device=torch.device("cuda", 0), shape=torch.Size(shape))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert expected == fp8_linear.reject_reason(weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
def test_the_device_is_named_first(dtype):
    expected = "weights are on cpu; FP8 matmuls need a CUDA device, sm_89 or newer"
    assert expected == fp8_linear.reject_reason(torch.zeros(32, 32, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_reasons_of_other_weights_on_a_card(dtype):
    weight = SimpleNamespace(dtype=getattr(torch, dtype), device=torch.device("cuda", 0), shape=torch.Size((32, 32)))
    assert f"weights are {dtype}; FP8 matmuls replace bfloat16 ones" == fp8_linear.reject_reason(weight)
