"""The interpreted kernel against its reference: a chain of rounded pointwise operations has the same bits anywhere."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import gated_residual
from tests.fastpaths.kernels.row_models import NAN, bits, chunks, normal, poisoned, special_values

CASES = {
    "four-columns": (1, 1, 4, 0),
    "prime-rows": (1, 7, 12, 0),
    "odd-text-two-samples": (2, 5, 12, 3),
    "all-text": (2, 2, 12, 2),
    "text-beyond-the-rows": (1, 3, 12, 7),
    "one-block": (1, 2, 1024, 1),
    "second-block-of-four": (1, 3, 1028, 0),
    "last-block-cut": (2, 3, 2432, 1),
}


def arguments(batch, rows, width, text_rows):
    """The positional arguments of ``fused``; gates as a modulation's ``chunk`` leaves them."""
    _, _, gate, _, _, text_gate = chunks(2, batch, width, 6)
    text_gate = text_gate if text_rows else None
    return (normal(0, batch, rows, width), normal(1, batch, rows, width), gate, text_gate, text_rows)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_are_those_of_eager(case):
    given = arguments(*case)
    before = [value.clone() for value in given if isinstance(value, torch.Tensor)]
    out = poisoned(*case[:3])
    assert gated_residual.reject_reason(*given, out=out) is None
    assert gated_residual.fused(*given, out=out) is out
    assert torch.equal(bits(gated_residual.reference(*given)), bits(out))
    assert torch.equal(bits(out), bits(gated_residual.fused(*given)))
    after = [value for value in given if isinstance(value, torch.Tensor)]
    assert all(torch.equal(bits(old), bits(new)) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["residual", "update"])
def test_in_place(name):
    residual, update, *rest = arguments(2, 3, 1028, 1)
    wanted = gated_residual.reference(residual.clone(), update.clone(), *rest)
    out = {"residual": residual, "update": update}[name]
    assert gated_residual.reject_reason(residual, update, *rest, out=out) is None
    assert gated_residual.fused(residual, update, *rest, out=out) is out
    assert torch.equal(bits(wanted), bits(out))


def test_rows_may_be_strided_and_out_may_be_part_of_a_buffer():
    residual, update = normal(0, 3, 2, 16).transpose(0, 1), normal(1, 2, 4, 24)[:, 1:, 8:]
    (gate,) = chunks(2, 2, 16, 1)
    buffer = poisoned(2, 5, 24)
    out = buffer[:, 1:4, 8:]
    assert gated_residual.reject_reason(residual, update, gate, out=out) is None
    gated_residual.fused(residual, update, gate, out=out)
    assert torch.equal(bits(gated_residual.reference(residual, update, gate)), bits(out))
    assert buffer[:, [0, 4]].isnan().all()
    assert buffer[..., :8].isnan().all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values_in_every_combination():
    """Subnormals and zeros of both signs, ties, overflow to infinity: 21 values of each operand with each other."""
    width = 21 * 21 * 4
    values = special_values(1, 21, width)
    residual = values[:, torch.arange(21)]
    update = torch.stack([special_values(1, width).roll(shift, dims=1) for shift in range(21)], dim=1)
    gate = special_values(1, width // 21).repeat_interleave(21, dim=1)
    wanted, out = gated_residual.reference(residual, update, gate), gated_residual.fused(residual, update, gate)
    assert torch.equal(wanted.isnan(), out.isnan())
    assert torch.equal(bits(wanted.nan_to_num(1.0)), bits(out.nan_to_num(1.0)))
    assert wanted.isinf().any()
    assert (bits(wanted) == -0x8000).any()
    assert ((wanted != 0) & (wanted.abs() < 2.0**-126)).any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinities_and_nan():
    residual, update, gate = (torch.ones(shape).bfloat16() for shape in ((1, 1, 8), (1, 1, 8), (1, 8)))
    residual[0, 0, :2] = torch.tensor([float("inf"), NAN])
    update[0, 0, 2:5] = torch.tensor([float("-inf"), NAN, float("inf")])
    residual[0, 0, 4] = float("-inf")
    gate[0, 5:7] = torch.tensor([NAN, float("inf")])
    out = gated_residual.fused(residual, update, gate)
    assert [True, False, True, False, False, False, True, False] == out[0, 0].isinf().tolist()
    assert [False, True, False, True, True, True, False, False] == out[0, 0].isnan().tolist()


def test_the_reference_is_diffusers_expression():
    residual, update, gate, text_gate, rows = arguments(2, 3, 12, 1)
    image = residual[:, 1:] + gate.unsqueeze(1) * update[:, 1:]
    text = residual[:, :1] + text_gate.unsqueeze(1) * update[:, :1]
    out = gated_residual.reference(residual, update, gate, text_gate, rows)
    assert torch.equal(bits(torch.cat([text, image], dim=1)), bits(out))
    whole = residual + gate.unsqueeze(1) * update
    assert torch.equal(bits(whole), bits(gated_residual.reference(residual, update, gate)))


X, GATE = torch.zeros(1, 3, 8, dtype=torch.bfloat16), torch.zeros(1, 8, dtype=torch.bfloat16)
WIDE = torch.zeros(1, 3, 12, dtype=torch.bfloat16)
REASONS = {
    "dtype": ("residual is float32; the kernel needs bfloat16", (X.float(), X, GATE)),
    "dimensions": ("residual has 2 dimensions; the kernel needs 3: [B, S, D]", (X[0], X, GATE)),
    "empty": ("residual has shape [1, 0, 8]; the kernel needs at least one element", (X[:, :0], X[:, :0], GATE)),
    "width": (
        "residual is 6 wide; the kernel needs a multiple of 4 up to 16384",
        (X[..., :6], X[..., :6], GATE[:, :6]),
    ),
    "address": ("residual starts 8 bytes past a 16-byte address; the kernel needs 0", (WIDE[..., 4:], X, GATE)),
    "update-shape": ("update has shape [1, 2, 8]; the kernel needs [1, 3, 8]", (X, X[:, :2], GATE)),
    "update-dtype": ("update is float16; the kernel needs bfloat16", (X, X.half(), GATE)),
    "update-device": ("update is on meta; the other tensors are on cpu", (X, X.to("meta"), GATE)),
    "update-address": ("update starts 8 bytes past a 16-byte address; the kernel needs 0", (X, WIDE[..., 4:], GATE)),
    "gate-shape": ("gate has shape [1, 1, 8]; the kernel needs [1, 8]", (X, X, GATE[None])),
    "text-gate": ("text_rows is 2 without text_gate; the kernel needs it", (X, X, GATE, None, 2)),
    "text-gate-shape": ("text_gate has shape [8]; the kernel needs [1, 8]", (X, X, GATE, GATE[0], 2)),
    "text-rows": ("text_rows is -3; the kernel needs 0 or more", (X, X, GATE, GATE, -3)),
    "out-dtype": ("out is float32; the kernel needs bfloat16", (X, X, GATE, None, 0, X.float())),
    "out-overlapping": (
        "out has strides [24, 0, 1]; an output needs its own memory for every element",
        (X, X, GATE, None, 0, X[:, :1].expand(1, 3, 8)),
    ),
}


@pytest.mark.parametrize(("expected_reason", "given"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, given):
    assert expected_reason == gated_residual.reject_reason(*given)


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    assert gated_residual.reject_reason(X, X, GATE) == "residual is on cpu; the kernel needs a CUDA device"


def test_the_operator_is_functional_and_has_a_fake():
    given = arguments(2, 2, 12, 1)
    operator = torch.ops.fuseproof.gated_residual
    assert torch.equal(bits(gated_residual.reference(*given)), bits(operator(*given)))
    torch.library.opcheck(operator.default, given, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        out = operator(*(mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in given))
    assert ((2, 2, 12), torch.bfloat16) == (tuple(out.shape), out.dtype)
    with pytest.raises(ValueError, match="residual is float32"):
        operator(given[0].float(), *given[1:])


@pytest.mark.parametrize(("expected_gates", "text_rows"), [(1, 0), (2, 1), (1, 3)], ids=["no-text", "both", "all-text"])
def test_traffic_counts_everything_once(expected_gates, text_rows):
    given = arguments(2, 3, 12, text_rows)
    assert 3 * 2 * 3 * 12 * 2 + expected_gates * 2 * 12 * 2 == gated_residual.traffic_bytes(*given)
