"""The interpreted kernel: the sum against eager, the norm of that very sum against a model of CUDA's order."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import gated_residual, gated_residual_layernorm_modulate, layernorm_modulate
from tests.fastpaths.kernels.row_models import (
    EPS,
    NAN,
    bits,
    chunks,
    fuse_interpreted_fma,
    modulated,
    normal,
    poisoned,
    special_values,
)

CASES = {
    "one-thread": (1, 1, 4, 0),
    "three-threads-prime-rows": (1, 3, 12, 1),
    "one-round-two-samples": (2, 1, 512, 0),
    "second-round-of-one-thread": (2, 3, 516, 1),
    "all-text": (1, 2, 12, 2),
    "text-beyond-the-rows": (1, 3, 12, 7),
    "last-round-cut": (1, 2, 2432, 1),
}


@pytest.fixture(autouse=True)
def _fused_fma(monkeypatch):
    fuse_interpreted_fma(monkeypatch)


def arguments(batch, rows, width, text_rows):
    """The positional arguments of ``fused``; vectors as a modulation's ``chunk`` leaves them."""
    gate, shift, scale, text_gate, text_shift, text_scale = chunks(2, batch, width, 6)
    text = (text_gate, text_scale, text_shift) if text_rows else (None, None, None)
    return (normal(0, batch, rows, width), normal(1, batch, rows, width), gate, scale, shift, EPS, *text, text_rows)


def expected(residual, update, gate, scale, shift, eps, text_gate=None, text_scale=None, text_shift=None, text_rows=0):
    x = gated_residual.reference(residual, update, gate, text_gate, text_rows)
    return x, modulated(x, scale, shift, text_scale, text_shift, text_rows, eps)


def assert_bits(expected_pair, actual_pair):
    for wanted, actual in zip(expected_pair, actual_pair, strict=True):
        assert torch.equal(bits(wanted), bits(actual))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_are_those_of_cuda(case):
    given = arguments(*case)
    before = [value.clone() for value in given if isinstance(value, torch.Tensor)]
    outputs = {"out": poisoned(*case[:3]), "modulated": poisoned(*case[:3])}
    assert gated_residual_layernorm_modulate.reject_reason(*given, **outputs) is None
    pair = gated_residual_layernorm_modulate.fused(*given, **outputs)
    assert all(made is wanted for made, wanted in zip(pair, outputs.values(), strict=True))
    assert_bits(expected(*given), pair)
    assert_bits(pair, gated_residual_layernorm_modulate.fused(*given))
    assert_bits(before, [value for value in given if isinstance(value, torch.Tensor)])


@pytest.mark.parametrize("width", [12, 516])
@pytest.mark.parametrize("modulated_name", ["fresh", "update"])
def test_in_place(width, modulated_name):
    residual, update, *rest = arguments(2, 2, width, 1)
    wanted = expected(residual.clone(), update.clone(), *rest)
    outputs = {"out": residual} | ({"modulated": update} if modulated_name == "update" else {})
    assert gated_residual_layernorm_modulate.reject_reason(residual, update, *rest, **outputs) is None
    out, normed = gated_residual_layernorm_modulate.fused(residual, update, *rest, **outputs)
    assert out is residual
    assert (normed is update) is (modulated_name == "update")
    assert_bits(wanted, (out, normed))


def test_rows_may_be_strided_and_outputs_parts_of_buffers():
    residual, update = normal(0, 3, 2, 16).transpose(0, 1), normal(1, 2, 4, 24)[:, 1:, 8:]
    gate, scale, shift = chunks(2, 2, 16, 3)
    buffers = poisoned(2, 2, 5, 24)
    out, normed = buffers[0, :, 1:4, 8:], buffers[1, :, 2:, :16]
    given = (residual, update, gate, scale, shift, EPS)
    assert gated_residual_layernorm_modulate.reject_reason(*given, out=out, modulated=normed) is None
    gated_residual_layernorm_modulate.fused(*given, out=out, modulated=normed)
    assert_bits(expected(*given), (out, normed))
    assert 2 * 2 * 3 * 16 == int((~buffers.isnan()).sum())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values():
    """Subnormals, zeros of both signs, ties, overflow to infinity in the sum, which makes its whole row NaN."""
    residual = special_values(1, 4, 516)
    residual[0, :2] = residual[0, :2].where(residual[0, :2].abs() < 1e9, torch.ones(()).bfloat16())
    residual[0, 3, 5] = NAN
    update = special_values(1, 4, 516).roll(1, dims=2).clamp(-2, 2)
    vectors = [special_values(1, 516).roll(shift).clamp(-8, 8) for shift in (2, 5, 9)]
    wanted = expected(residual, update, *vectors, EPS)
    assert not wanted[1][0, :2].isnan().any()
    assert wanted[1][0, 3].isnan().all()
    for left, right in zip(
        wanted, gated_residual_layernorm_modulate.fused(residual, update, *vectors, EPS), strict=True
    ):
        assert torch.equal(left.isnan(), right.isnan())
        assert torch.equal(bits(left.nan_to_num(1.0)), bits(right.nan_to_num(1.0)))


def test_the_two_kernels_one_after_the_other_give_the_same_bits():
    residual, update, gate, scale, shift, eps, text_gate, text_scale, text_shift, rows = arguments(2, 3, 516, 1)
    out = gated_residual.fused(residual, update, gate, text_gate, rows)
    normed = layernorm_modulate.fused(out, scale, shift, eps, text_scale, text_shift, rows)
    given = (residual, update, gate, scale, shift, eps, text_gate, text_scale, text_shift, rows)
    assert_bits((out, normed), gated_residual_layernorm_modulate.fused(*given))


def test_the_reference_is_diffusers_expression():
    residual, update, gate, scale, shift, eps, text_gate, text_scale, text_shift, rows = arguments(2, 3, 12, 1)

    def block(part, gate, scale, shift):
        x = residual[:, part] + gate.unsqueeze(1) * update[:, part]
        normed = torch.nn.LayerNorm(12, elementwise_affine=False, eps=eps)(x)
        return x, normed * (1 + scale[:, None]) + shift[:, None]

    text, image = (
        block(slice(None, 1), text_gate, text_scale, text_shift),
        block(slice(1, None), gate, scale, shift),
    )
    wanted = [torch.cat(parts, dim=1) for parts in zip(text, image, strict=True)]
    given = (residual, update, gate, scale, shift, eps, text_gate, text_scale, text_shift, rows)
    assert_bits(wanted, gated_residual_layernorm_modulate.reference(*given))
    whole = block(slice(None), gate, scale, shift)
    assert_bits(whole, gated_residual_layernorm_modulate.reference(*given[:6]))


X, V = torch.zeros(1, 3, 8, dtype=torch.bfloat16), torch.zeros(1, 8, dtype=torch.bfloat16)
WIDE = torch.zeros(1, 3, 12, dtype=torch.bfloat16)
VECTORS = (V, V, V, EPS)
REASONS = {
    "dtype": ("residual is float16; the kernel needs bfloat16", (X.half(), X, *VECTORS)),
    "empty": ("residual has shape [0, 3, 8]; the kernel needs at least one element", (X[:0], X[:0], *VECTORS)),
    "width": (
        "residual is 6 wide; the kernel needs a multiple of 4 up to 16384",
        (X[..., :6], X[..., :6], *VECTORS),
    ),
    "update-shape": ("update has shape [1, 3, 4]; the kernel needs [1, 3, 8]", (X, X[..., :4], *VECTORS)),
    "update-address": (
        "update starts 8 bytes past a 16-byte address; the kernel needs 0",
        (X, WIDE[..., 4:], *VECTORS),
    ),
    "eps": (f"eps is 1e-40; the kernel needs at least {2.0**-126}", (X, X, V, V, V, 1e-40)),
    "gate": ("gate has shape [8]; the kernel needs [1, 8]", (X, X, V[0], V, V, EPS)),
    "scale": ("scale is float32; the kernel needs bfloat16", (X, X, V, V.float(), V, EPS)),
    "shift": ("shift is on meta; the other tensors are on cpu", (X, X, V, V, V.to("meta"), EPS)),
    "text-gate": ("text_rows is 1 without text_gate; the kernel needs it", (X, X, *VECTORS, None, V, V, 1)),
    "text-scale": ("text_rows is 1 without text_scale; the kernel needs it", (X, X, *VECTORS, V, None, V, 1)),
    "text-shift": ("text_rows is 1 without text_shift; the kernel needs it", (X, X, *VECTORS, V, V, None, 1)),
    "text-rows": ("text_rows is -1; the kernel needs 0 or more", (X, X, *VECTORS, V, V, V, -1)),
    "out": (
        "out has shape [1, 2, 8]; the kernel needs [1, 3, 8]",
        (X, X, *VECTORS, None, None, None, 0, X[:, :2]),
    ),
    "modulated": (
        "modulated is float32; the kernel needs bfloat16",
        (X, X, *VECTORS, None, None, None, 0, None, X.float()),
    ),
    "same-memory": (
        "out and modulated start at the same address; the kernel needs memory of its own for each",
        (X, X, *VECTORS, None, None, None, 0, X, X),
    ),
}


@pytest.mark.parametrize(("expected_reason", "given"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, given):
    assert expected_reason == gated_residual_layernorm_modulate.reject_reason(*given)


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    reason = gated_residual_layernorm_modulate.reject_reason(X, X, *VECTORS)
    assert reason == "residual is on cpu; the kernel needs a CUDA device"


def test_the_operator_is_functional_and_has_a_fake():
    given = arguments(2, 2, 12, 1)
    operator = torch.ops.fuseproof.gated_residual_layernorm_modulate
    assert_bits(expected(*given), operator(*given))
    torch.library.opcheck(operator.default, given, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        pair = operator(*(mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in given))
    assert [(2, 2, 12)] * 2 == [tuple(out.shape) for out in pair]
    with pytest.raises(ValueError, match="residual is float32"):
        operator(given[0].float(), *given[1:])


@pytest.mark.parametrize(("expected_sets", "text_rows"), [(1, 0), (2, 1), (1, 3)], ids=["no-text", "both", "all-text"])
def test_traffic_counts_everything_once(expected_sets, text_rows):
    given = arguments(2, 3, 12, text_rows)
    wanted = 4 * 2 * 3 * 12 * 2 + expected_sets * 3 * 2 * 12 * 2
    assert wanted == gated_residual_layernorm_modulate.traffic_bytes(*given)
