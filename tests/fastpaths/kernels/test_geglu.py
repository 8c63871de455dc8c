"""The interpreted kernel against eager, over every bf16 value."""

import pytest
import torch

from fuseproof.fastpaths.kernels import geglu
from tests.fastpaths.kernels.row_models import bits, normal, poisoned


def every_finite_value():
    codes = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return codes[codes.isfinite()].reshape(1, 16, -1)


def test_the_gelu_of_every_finite_value_is_eagers():
    gate = every_finite_value()
    found = geglu.fused(gate, torch.ones_like(gate))
    assert torch.equal(bits(geglu.reference(gate, torch.ones_like(gate))), bits(found))


def test_what_is_no_number_or_infinite_stays_what_eager_makes_of_it():
    gate = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0] * 16).bfloat16().reshape(1, 5, 16)
    found, wanted = geglu.fused(gate, torch.ones_like(gate)), geglu.reference(gate, torch.ones_like(gate))
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(bits(found)[~found.isnan()], bits(wanted)[~found.isnan()])


def test_the_table_is_made_once_and_never_while_a_graph_is_captured(monkeypatch):
    cpu = torch.device("cpu")
    assert geglu.gelu_table(cpu) is geglu.gelu_table(cpu)
    with torch.inference_mode():
        assert not geglu.gelu_table(cpu).is_inference()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="call the kernel once before"):
        geglu.gelu_table(torch.device("cuda", 7))


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
