"""The interpreted kernel against eager: over every bf16 value, but for a CPU's erf, whose last places are its own."""

import math

import pytest
import torch

from fuseproof.fastpaths.kernels import geglu
from tests.fastpaths.kernels.row_models import bits, normal, poisoned


def gelu(x):
    """R of aten's fp32 expression with a correctly rounded erf: what differs from it differs in erf alone."""
    wide = x.float()
    inner = wide * torch.tensor(math.sqrt(0.5))
    return (wide * 0.5 * (1 + torch.erf(inner.double()).float())).bfloat16()


def every_finite_value():
    codes = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return codes[codes.isfinite()].reshape(1, 16, -1)


def test_the_gelu_of_every_finite_value_is_eagers_but_for_erfs_last_place():
    gate = every_finite_value()
    up = torch.ones_like(gate)
    found, wanted = geglu.fused(gate, up), geglu.reference(gate, up)
    near = (found.float() - gelu(gate).float()).abs() <= 2.0**-8 * found.float().abs()
    assert near.all()
    assert (bits(found) != bits(wanted)).float().mean() < 0.01


@pytest.mark.parametrize("columns", [1, 7, 2048, 2056], ids=["one", "prime", "one-block", "second-block-cut"])
def test_the_product_is_rounded_after_the_gelu(columns):
    gate, up = normal(0, 2, 3, columns), normal(1, 2, 3, columns)
    activated = geglu.fused(gate, torch.ones_like(up))
    assert torch.equal(bits(up * activated), bits(geglu.fused(gate, up)))


def test_halves_of_a_packed_projection_into_a_buffer():
    packed = normal(0, 2, 5, 64)
    gate, up = packed.chunk(2, dim=-1)
    before, out = packed.clone(), poisoned(2, 5, 32)
    assert geglu.reject_reason(gate, up, out) is None
    assert geglu.fused(gate, up, out=out) is out
    assert torch.equal(bits(before), bits(packed))
    assert torch.equal(bits(geglu.fused(gate.contiguous(), up.contiguous())), bits(out))


REASONS = {
    "fp16": (lambda x: x.half(), lambda x: x, "gate is float16; the kernel needs bfloat16"),
    "empty": (lambda x: x[:, :0], lambda x: x, "gate has shape [1, 0, 16]; the kernel needs at least one element"),
    "up-shape": (lambda x: x, lambda x: x[..., :8], "up has shape [1, 3, 8]; the kernel needs [1, 3, 16]"),
    "address": (
        lambda x: x[..., 1:9],
        lambda x: x[..., :8],
        "gate starts 2 bytes past a 16-byte address; the kernel needs 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change_gate", "change_up", "expected"), REASONS.values(), ids=REASONS)
def test_reject_reasons(change_gate, change_up, expected):
    x = normal(0, 1, 3, 16)
    assert expected == geglu.reject_reason(change_gate(x), change_up(x))


def test_the_operator_is_functional_and_has_a_fake():
    given = normal(0, 1, 3, 16), normal(1, 1, 3, 16)
    operator = torch.ops.fuseproof.geglu
    torch.library.opcheck(operator.default, given, test_utils=("test_schema", "test_faketensor"))
    with pytest.raises(ValueError, match="gate is float16"):
        operator(given[0].half(), given[1])


def test_traffic_counts_everything_once():
    assert 3 * 2 * 3 * 16 == geglu.traffic_bytes(normal(0, 1, 3, 16), normal(1, 1, 3, 16))
