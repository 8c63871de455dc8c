"""The interpreted kernels against a model of torch's reduction on CUDA, and the fusion that a gate must reject."""

import pytest
import torch
from diffusers.models.normalization import RMSNorm
from torch._subclasses.fake_tensor import FakeTensorMode

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.kernels import gated_residual, gated_residual_rmsnorm_modulate, rmsnorm_modulate
from fuseproof.fastpaths.kernels import rms_statistics as statistics
from fuseproof.fastpaths.operations import GatedOperation
from tests.fastpaths.kernels.rms_models import EPS, mean_of_squares, modulated, single_pass
from tests.fastpaths.kernels.row_models import bits, chunks, normal, poisoned

CASES = {
    "one-round": (1, 16, 128),
    "prime-rows": (1, 17, 256),
    "two-samples": (2, 9, 384),
    "factor-is-no-power-of-two": (1, 19, 640),
}


def arguments(batch, rows, width):
    """The positional arguments of ``fused``; scale and shift as a modulation's ``chunk`` leaves them."""
    shift, scale, *_ = chunks(2, batch, width, 6)
    return normal(0, batch, rows, width), normal(1, width), scale, shift, EPS


def gated_arguments(batch, rows, width):
    x, weight, scale, shift, eps = arguments(batch, rows, width)
    gate = chunks(2, batch, width, 6)[2]
    return x, normal(3, batch, rows, width), gate, weight, scale, shift, eps


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_are_those_of_cudas_order(case):
    given = arguments(*case)
    before = [value.clone() for value in given[:4]]
    out = poisoned(*case)
    assert rmsnorm_modulate.reject_reason(*given, out=out) is None
    assert rmsnorm_modulate.fused(*given, out=out) is out
    assert torch.equal(bits(modulated(*given[:4])), bits(out))
    assert torch.equal(bits(out), bits(rmsnorm_modulate.fused(*given)))
    assert all(torch.equal(bits(old), bits(new)) for old, new in zip(before, given[:4], strict=True))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_joined_kernel_is_the_sum_and_its_norm(case):
    residual, update, gate, *norm = given = gated_arguments(*case)
    out, normed = poisoned(*case), poisoned(*case)
    assert gated_residual_rmsnorm_modulate.reject_reason(*given, out=out, modulated=normed) is None
    gated_residual_rmsnorm_modulate.fused(*given, out=out, modulated=normed)
    wanted = gated_residual.reference(residual, update, gate)
    assert torch.equal(bits(wanted), bits(out))
    assert torch.equal(bits(modulated(wanted, *norm[:3])), bits(normed))


@pytest.mark.parametrize("reduction", ["aten", "torch"])
def test_a_stream_with_samples_side_by_side_in_place(reduction, monkeypatch):
    """[S, B, D] memory seen as [B, S, D], beside an update that is laid out the other way."""
    monkeypatch.setattr(statistics, "REDUCTION", reduction)
    residual, update, gate, *norm = gated_arguments(2, 11, 256)
    stream = residual.transpose(0, 1).contiguous().transpose(0, 1)
    wanted = gated_residual.reference(residual, update, gate)
    out, normed = gated_residual_rmsnorm_modulate.fused(stream, update, gate, *norm, out=stream, modulated=update)
    assert stream.data_ptr() == out.data_ptr()
    assert update.data_ptr() == normed.data_ptr()
    assert torch.equal(bits(wanted), bits(stream))
    if reduction == "aten":
        assert torch.equal(bits(modulated(wanted, *norm[:3])), bits(update))
    else:
        assert torch.equal(bits(rmsnorm_modulate.reference(wanted, *norm)), bits(update))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_with_torchs_own_sum_every_bit_is_the_references_here_too(case):
    given = arguments(*case)
    assert torch.equal(bits(rmsnorm_modulate.reference(*given)), bits(rmsnorm_modulate.launch(*given, None, "torch")))


def other_orders():
    """Rows whose result differs in another order of the same sum."""
    generator = torch.Generator().manual_seed(1)
    sizes = torch.exp2(torch.randint(-4, 12, (1, 12000, 640), generator=generator).float())
    x = (torch.randn(1, 12000, 640, generator=generator) * sizes).bfloat16()
    weight, zero = torch.ones(640).bfloat16(), torch.zeros(1, 640).bfloat16()
    return x, weight, zero


@pytest.mark.parametrize("order", [{"ascending": True}, {"strided": True}], ids=["folds-1-to-16", "every-32nd-column"])
def test_the_order_of_the_sum_shows_in_the_bits(order):
    x, weight, zero = other_orders()
    differs = (mean_of_squares(x[0]) != mean_of_squares(x[0], **order)).nonzero()[0]
    assert len(differs) > 100
    wanted, other = modulated(x, weight, zero, zero), modulated(x, weight, zero, zero, **order)
    telling = (bits(wanted) != bits(other)).any(-1)[0].nonzero()[:, 0]
    assert len(telling) >= 2
    few = telling[torch.arange(16) % len(telling)]
    actual = rmsnorm_modulate.fused(x[:, few], weight, zero, zero, EPS)
    assert torch.equal(bits(wanted[:, few]), bits(actual))
    assert not torch.equal(bits(other[:, few]), bits(actual))


def test_the_reference_is_diffusers_own():
    x, weight, scale, shift, eps = arguments(2, 5, 128)
    norm = RMSNorm(128, eps)
    norm.weight.data = weight
    with torch.no_grad():
        normed = norm(x.transpose(0, 1))
        scale_sbd, shift_sbd = (one.unsqueeze(0).expand(5, -1, -1).contiguous() for one in (scale, shift))
        wanted = (normed.float() * (1 + scale_sbd.float()) + shift_sbd.float()).to(normed.dtype).transpose(0, 1)
    assert torch.equal(bits(wanted), bits(rmsnorm_modulate.reference(x, weight, scale, shift, eps)))


class SinglePass:
    """A kernel that someone could have written: fp32 throughout, one rounding at the end."""

    reference = staticmethod(rmsnorm_modulate.reference)
    reject_reason = staticmethod(rmsnorm_modulate.reject_reason)

    @staticmethod
    def fused(x, weight, scale, shift, eps, out=None):
        return single_pass(x, weight, scale, shift)


@torch.no_grad()
def test_a_kernel_that_rounds_once_is_rejected_at_first_sight():
    gate = Gate("rmsnorm_modulate")
    given = arguments(1, 64, 512)
    wanted = rmsnorm_modulate.reference(*given)
    for _ in range(2):
        assert torch.equal(bits(wanted), bits(GatedOperation("rmsnorm_modulate", SinglePass, gate)(*given)))
    (rejection,) = gate.rejections.values()
    assert rejection.reason.startswith("not bit-exact: 30.")
    assert (0, 2) == (gate.calls_fused, gate.calls_eager)


X, WEIGHT, SCALE, SHIFT = range(4)
REASONS = {
    "fp16": (X, lambda x: x.half(), "x is float16; the kernel needs bfloat16"),
    "few-rows": (X, lambda x: x[:, :7], "x has 14 rows; the kernel needs at least 16, torch sums fewer differently"),
    "width": (X, lambda x: x[..., :200], "x is 200 wide; the kernel needs a multiple of 128 up to 8064"),
    "weight-dtype": (WEIGHT, lambda w: w.float(), "weight is float32; the kernel needs bfloat16"),
    "weight-shape": (WEIGHT, lambda w: w[:128], "weight has shape [128]; the kernel needs [256]"),
    "scale-rows": (SCALE, lambda s: s[:1], "scale has shape [1, 256]; the kernel needs [2, 256]"),
    "shift-device": (SHIFT, lambda s: s.to("meta"), "shift is on meta; the other tensors are on cpu"),
}


@pytest.mark.parametrize(("position", "change", "expected"), REASONS.values(), ids=REASONS)
def test_reject_reasons(position, change, expected):
    given = list(arguments(2, 9, 256))
    given[position] = change(given[position])
    assert expected == rmsnorm_modulate.reject_reason(*given)


def test_reject_reasons_of_the_joined_kernel():
    given = gated_arguments(2, 9, 256)
    check = gated_residual_rmsnorm_modulate.reject_reason
    out = poisoned(2, 9, 256)
    assert check(given[0], given[1][:, :3], *given[2:]) == "update has shape [2, 3, 256]; the kernel needs [2, 9, 256]"
    assert check(*given[:6], 0.0) == "eps is 0.0; the kernel needs at least 1.1754943508222875e-38"
    assert check(*given, out=out, modulated=out).startswith("out and modulated start at the same address")
    assert check(*given[:2], given[2].half(), *given[3:]) == "gate is float16; the kernel needs bfloat16"


@pytest.mark.parametrize(
    ("operator", "given"),
    [
        (torch.ops.fuseproof.rmsnorm_modulate, arguments(1, 16, 128)),
        (torch.ops.fuseproof.gated_residual_rmsnorm_modulate, gated_arguments(1, 16, 128)),
    ],
    ids=["alone", "joined"],
)
def test_the_operators_are_functional_and_have_fakes(operator, given):
    torch.library.opcheck(operator.default, given, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in given]
        made = operator(*fakes)
    assert all((1, 16, 128) == tuple(one.shape) for one in (made if isinstance(made, tuple) else (made,)))
    with pytest.raises(ValueError, match="float16"):
        operator(given[0].half(), *given[1:])


def test_traffic_counts_everything_once():
    row, vector = 2 * 9 * 256 * 2, 2 * 256 * 2
    assert 2 * row + 512 + 2 * vector == rmsnorm_modulate.traffic_bytes(*arguments(2, 9, 256))
    assert 4 * row + 512 + 3 * vector == gated_residual_rmsnorm_modulate.traffic_bytes(*gated_arguments(2, 9, 256))
