"""What is almost right shows: other roundings, contracted sums, other rows; a loose check would let them pass."""

import pytest
import torch
import torch.nn.functional as F

from fuseproof.fastpaths.kernels import (
    residual_table_layernorm_modulate,
    table_gated_residual,
    table_gated_residual_layernorm,
    table_layernorm_modulate,
)
from tests.fastpaths.kernels.row_models import EPS, bits, exact_fma
from tests.fastpaths.kernels.test_table_kernels import KERNELS, as_tuple, assert_bits
from tests.fastpaths.kernels.wan_transformer_models import (
    GATE,
    GATE_FFN,
    SCALE,
    SHIFT,
    affine,
    arguments,
    modulation,
    norms_of_cuda,
)


@pytest.fixture(autouse=True)
def _norms_of_cuda(monkeypatch):
    norms_of_cuda(monkeypatch)


def wide(seed=7):
    """Rows enough for a wrong rounding to show, of even size: hidden, update, table, temb."""
    hidden, update = (torch.randn(1, 4, 1536, generator=torch.Generator().manual_seed(s)).bfloat16() for s in (1, 2))
    table, temb, _ = modulation(seed, 1, 4, 1536)
    return hidden, update, table, temb


def vector(table, temb, index):
    return table[:, index] + temb[:, 0, index].float()


def contracted(a, b, c):
    return torch.from_numpy(exact_fma(*(value.broadcast_to(a.shape).numpy() for value in (a, b, c))))


WRONG_MODULATIONS = {
    "norm-rounded-to-bf16": lambda x, scale, shift: x.bfloat16().float() * (1 + scale) + shift,
    "scale-rounded-to-bf16": lambda x, scale, shift: x * (1 + scale).bfloat16().float() + shift,
    "product-rounded-to-bf16": lambda x, scale, shift: (x * (1 + scale)).bfloat16().float() + shift,
    "swapped": lambda x, scale, shift: x * (1 + shift) + scale,
    "without-one": lambda x, scale, shift: x * scale + shift,
}


@pytest.mark.parametrize("wrong", WRONG_MODULATIONS.values(), ids=WRONG_MODULATIONS)
def test_another_modulation_has_other_bits(wrong):
    hidden, _, table, temb = wide()
    x = F.layer_norm(hidden.float(), (1536,))
    other = wrong(x, vector(table, temb, SCALE), vector(table, temb, SHIFT)).bfloat16()
    result = table_layernorm_modulate.fused(hidden, table, temb, None, SHIFT, SCALE, EPS)
    assert not torch.equal(bits(other), bits(result))


WRONG_GATES = {
    "product-rounded-to-bf16": lambda x, y, gate: x + (y.float() * gate).bfloat16(),
    "gate-rounded-to-bf16": lambda x, y, gate: (x.float() + y.float() * gate.bfloat16().float()).bfloat16(),
    "table-alone": lambda x, y, gate: (x.float() + y.float() * (gate - 0.125)).bfloat16(),
}


@pytest.mark.parametrize("wrong", WRONG_GATES.values(), ids=WRONG_GATES)
def test_another_gated_sum_has_other_bits(wrong):
    hidden, update, table, temb = wide()
    other = wrong(hidden, update, vector(table, temb, GATE))
    assert not torch.equal(bits(other), bits(table_gated_residual.fused(hidden, update, table, temb, None, GATE)))


def test_the_norm_of_a_sum_that_is_not_rounded_has_other_bits():
    hidden, update, table, temb = wide()
    weight, bias = affine(3, 1536)
    exact = hidden.float() + update.float() * vector(table, temb, GATE)
    other = F.layer_norm(exact, (1536,), weight, bias).bfloat16()
    _, normed = table_gated_residual_layernorm.fused(hidden, update, table, temb, None, GATE, weight, bias, EPS)
    assert not torch.equal(bits(other), bits(normed))
    _, normed = residual_table_layernorm_modulate.fused(hidden, update, table, temb, None, SHIFT, SCALE, EPS)
    x = F.layer_norm(hidden.float() + update.float(), (1536,))
    other = (x * (1 + vector(table, temb, SCALE)) + vector(table, temb, SHIFT)).bfloat16()
    assert not torch.equal(bits(other), bits(normed))


def test_the_weights_of_the_norm_are_contracted():
    """A bias that takes away just the rounded product: what is left is what the product lost in rounding."""
    hidden, update, table, temb = (value[:, :1] for value in wide())
    table, (weight, _) = wide()[2], affine(3, 1536)
    new = table_gated_residual.reference(hidden, update, table, temb, None, GATE)
    bias = -(F.layer_norm(new.float(), (1536,)) * weight)[0, 0]
    given = (hidden, update, table, temb, None, GATE, weight, bias, EPS)
    results = table_gated_residual_layernorm.fused(*given)
    assert_bits(table_gated_residual_layernorm.reference(*given), results)
    assert (results[1] != 0).float().mean() > 0.9


def test_tokens_of_other_rows_have_other_bits():
    for name, kernel in KERNELS.items():
        given = list(arguments(name, 1, 5, 256, 2))
        results = as_tuple(kernel.fused(*given))
        place = next(index for index, value in enumerate(given) if getattr(value, "dtype", None) == torch.int32)
        given[place] = 1 - given[place]
        others = as_tuple(kernel.fused(*given))
        assert not torch.equal(bits(results[-1]), bits(others[-1])), name


def test_the_modulation_is_not_contracted():
    """A shift that takes away just the rounded product: what is left is 0, or what the product lost in rounding."""
    hidden, _, table, temb = wide()
    hidden, temb = hidden[:, :1], torch.zeros_like(temb)
    x = F.layer_norm(hidden.float(), (1536,))
    table[0, SHIFT] = -(x * (1 + table[0, SCALE]))[0, 0]
    result = table_layernorm_modulate.fused(hidden, table, temb, None, SHIFT, SCALE, EPS)
    assert not result.any()
    assert contracted(x, 1 + table[0, SCALE], table[0, SHIFT]).bfloat16().any()


def test_the_gated_sum_is_not_contracted():
    """Gates for which the rounded product is a bf16 number, and the residual its opposite."""
    hidden, update, table, temb = wide()
    update, temb = update[:, :1], torch.zeros_like(temb)
    table[0, GATE] = (hidden[:, :1].float() / update.float())[0, 0]
    residual = -(update.float() * table[0, GATE]).bfloat16()
    wanted = (residual.float() + update.float() * table[0, GATE]).bfloat16()
    assert (wanted == 0).float().mean() > 0.5
    assert_bits(wanted, table_gated_residual.fused(residual, update, table, temb, None, GATE))
    other = contracted(update.float(), table[0, GATE], residual.float()).bfloat16()
    assert ((other != 0) & (wanted == 0)).float().mean() > 0.3


def test_a_gate_is_a_row_of_the_table():
    """Neighbouring rows have neighbouring results: an index that is off by one would show."""
    hidden, update, table, temb = wide()
    for gate in (GATE, GATE_FFN):
        wanted = (hidden.float() + update.float() * vector(table, temb, gate)).bfloat16()
        assert_bits(wanted, table_gated_residual.fused(hidden, update, table, temb, None, gate))
