"""The interpreted kernel: a copy, and the GELU that test_gelu_tanh checks value by value."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fuseproof.fastpaths.kernels import attention_mlp_gelu
from fuseproof.fastpaths.kernels.gelu_tanh import Launch
from tests.fastpaths.kernels.test_gelu_tanh import bits, model, random_values

CASES = {
    "one-row": (1, 1, 8, 8),
    "prime-rows-odd-widths": (1, 7, 40, 13),
    "two-samples": (2, 3, 24, 96),
    "blocks-cut-on-both-sides": (1, 2, 72, 136),
}


def expected(attention, mlp):
    return torch.cat([attention, model(mlp)], dim=2)


@pytest.fixture
def _small_blocks(monkeypatch):
    monkeypatch.setattr(attention_mlp_gelu, "_LAUNCH", Launch(block=64))


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize(("batch", "rows", "width", "columns"), CASES.values(), ids=CASES)
def test_both_halves(batch, rows, width, columns):
    attention, mlp = random_values(batch, rows, width), random_values(batch, rows, columns)
    before = attention.clone(), mlp.clone()
    out = torch.full((batch, rows, width + columns), float("nan"), dtype=torch.bfloat16)
    assert attention_mlp_gelu.reject_reason(attention, mlp, out) is None
    assert attention_mlp_gelu.fused(attention, mlp, out) is out
    assert torch.equal(bits(expected(attention, mlp)), bits(out))
    assert torch.equal(bits(before[0]), bits(attention))
    assert torch.equal(bits(before[1]), bits(mlp))
    again = attention_mlp_gelu.fused(attention, mlp, torch.empty_like(out))
    assert torch.equal(bits(out), bits(again))


@pytest.mark.usefixtures("_small_blocks")
def test_the_mlp_half_in_place_in_a_packed_projection():
    """Query, key, value and MLP in one projection; attention takes the place of the value."""
    packed = torch.full((2, 3, 3 * 24 + 96), float("nan"), dtype=torch.bfloat16)
    mlp = packed[..., 72:].copy_(random_values(2, 3, 96))
    attention = random_values(2, 3, 24)
    wanted = expected(attention, mlp.clone())
    out = attention_mlp_gelu.fused(attention, mlp, out=packed[..., 48:])
    assert torch.equal(bits(wanted), bits(out))
    assert packed[..., :48].isnan().all()


def test_attention_rows_may_be_strided():
    attention = random_values(1, 3, 2, 24)[:, :, 1]
    mlp = random_values(1, 3, 16)
    out = attention_mlp_gelu.fused(attention, mlp, torch.empty(1, 3, 40, dtype=torch.bfloat16))
    assert torch.equal(bits(expected(attention, mlp)), bits(out))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinities_and_nan_are_copied_and_follow_the_formula():
    attention, mlp = random_values(1, 1, 8), random_values(1, 1, 8)
    for x in (attention, mlp):
        x[0, 0, :4] = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0])
    out = attention_mlp_gelu.fused(attention, mlp, torch.empty(1, 1, 16, dtype=torch.bfloat16))
    assert torch.equal(bits(attention), bits(out[..., :8]))
    assert [False, True, True, False] == out[0, 0, 8:12].isnan().tolist()
    assert float("inf") == out[0, 0, 8]
    assert -0x8000 == bits(out[0, 0, 11:12])


def test_the_reference_is_diffusers_expression():
    attention, mlp = random_values(1, 3, 8), random_values(1, 3, 16)
    wanted = torch.cat([attention, torch.nn.GELU(approximate="tanh")(mlp)], dim=2)
    assert torch.equal(bits(wanted), bits(attention_mlp_gelu.reference(attention, mlp)))


REASONS = {
    "fp16": ("attention is float16; the kernel needs bfloat16", lambda a, m, o: (a.half(), m, o)),
    "heads-apart": (
        "attention has 4 dimensions; the kernel needs 3: [B, S, A]",
        lambda a, m, o: (a.unflatten(2, (2, 4)), m, o),
    ),
    "empty-mlp": (
        "mlp has shape [1, 3, 0]; the kernel needs at least one element",
        lambda a, m, o: (a, m[..., :0], o),
    ),
    "mlp-rows": ("mlp has shape [1, 2, 16]; the kernel needs [1, 3, 16]", lambda a, m, o: (a, m[:, :2], o)),
    "mlp-device": ("mlp is on meta; the other tensors are on cpu", lambda a, m, o: (a, m.to("meta"), o)),
    "mlp-address": (
        "mlp starts 2 bytes past a 16-byte address; the kernel needs 0",
        lambda a, m, o: (a, m[..., 1:], o[..., :23]),
    ),
    "out-width": ("out has shape [1, 3, 16]; the kernel needs [1, 3, 24]", lambda a, m, o: (a, m, o[..., :16])),
    "out-last-dimension": (
        "out has strides [72, 1, 3]; the kernel needs a contiguous last dimension",
        lambda a, m, o: (a, m, o.transpose(1, 2).contiguous().transpose(1, 2)),
    ),
}


@pytest.mark.parametrize(("expected_reason", "change"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, change):
    tensors = random_values(1, 3, 8), random_values(1, 3, 16), random_values(1, 3, 24)
    assert expected_reason == attention_mlp_gelu.reject_reason(*change(*tensors))


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    from triton import knobs

    monkeypatch.setattr(knobs.runtime, "interpret", False)
    reason = attention_mlp_gelu.reject_reason(random_values(1, 1, 8), random_values(1, 1, 8), random_values(1, 1, 16))
    assert reason == "attention is on cpu; the kernel needs a CUDA device"


def test_the_operator_is_functional_and_has_a_fake():
    arguments = random_values(1, 3, 8), random_values(1, 3, 16)
    operator = torch.ops.fuseproof.attention_mlp_gelu
    assert torch.equal(bits(expected(*arguments)), bits(operator(*arguments)))
    torch.library.opcheck(operator.default, arguments, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        out = operator(*map(mode.from_tensor, arguments))
    assert ((1, 3, 24), torch.bfloat16) == (tuple(out.shape), out.dtype)
    with pytest.raises(ValueError, match="attention is float32"):
        operator(arguments[0].float(), arguments[1])


def test_traffic_counts_everything_once():
    attention, mlp, out = random_values(1, 3, 8), random_values(1, 3, 16), random_values(1, 3, 24)
    assert 4 * 3 * 24 == attention_mlp_gelu.traffic_bytes(attention, mlp, out)
