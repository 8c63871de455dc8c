"""Ahead-of-time checks: what is equal is equal, and each way of being wrong is found."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fuseproof.fastpaths import UserSite
from fuseproof.fastpaths.call_layouts import layout_of
from fuseproof.fastpaths.check_values import EDGE_VALUES, FINITE_BF16, VALUES, filler
from fuseproof.fastpaths.kernels import gated_residual
from fuseproof.fastpaths.prepared_calls import real_module
from fuseproof.fastpaths.tracing import SiteCall
from fuseproof.fastpaths.verification import Case, State, cases_for, certified_keys, check, check_call

CPU = torch.device("cpu")


def residual_call(user_site: UserSite | None = None, site: str = "gated_residual") -> SiteCall:
    """A gated residual in place, its gate a strided row of a table, as ``chunk`` leaves it."""
    hidden = torch.empty(1, 40, 64, dtype=torch.bfloat16, device="meta")
    update = torch.empty(1, 40, 64, dtype=torch.bfloat16, device="meta")
    gate = torch.empty(1, 6 * 64, dtype=torch.bfloat16, device="meta").chunk(6, dim=-1)[2]
    layout = layout_of("gated_residual", (hidden, update, gate, None, 0), {"out": hidden})
    return SiteCall(site, layout, user_site)


def own(fused, **values) -> UserSite:
    return UserSite("mine", fused=fused, replaces="gated_residual", **values)


def exact(residual, update, gate, text_gate=None, text_rows=0, out=None):
    return gated_residual.reference(residual, update, gate, text_gate, text_rows)


def exact_in_place(residual, update, gate, text_gate=None, text_rows=0, out=None):
    return out.copy_(gated_residual.reference(residual, update, gate, text_gate, text_rows))


def rounds_once(residual, update, gate, text_gate=None, text_rows=0, out=None):
    return (residual.float() + update.float() * gate[:, None].float()).to(residual.dtype)


def forgets_a_row(residual, update, gate, text_gate=None, text_rows=0, out=None):
    result = torch.empty_like(residual)
    result[:, :-1] = gated_residual.reference(residual, update, gate, text_gate, text_rows)[:, :-1]
    return result


def writes_its_input(residual, update, gate, text_gate=None, text_rows=0, out=None):
    result = gated_residual.reference(residual, update, gate, text_gate, text_rows)
    update.copy_(update.clone().roll(1, dims=1))
    update.copy_(update.clone().roll(-1, dims=1))
    update[0, 0, 0] = update[0, 0, 0].nextafter(torch.tensor(9.0, dtype=update.dtype))
    return result


@pytest.mark.parametrize(
    ("state", "words", "fused"),
    [
        pytest.param(State.EQUAL, None, exact, id="exact"),
        pytest.param(State.EQUAL, None, exact_in_place, id="exact in place"),
        pytest.param(State.DIFFERS, "not bit-exact", rounds_once, id="one rounding less"),
        pytest.param(State.DIFFERS, "bit", forgets_a_row, id="a row nobody writes"),
        pytest.param(State.DIFFERS, "", writes_its_input, id="an input was written"),
        pytest.param(State.DIFFERS, "ZeroDivisionError at first sight", lambda *_, **__: 1 / 0, id="raises"),
    ],
)
def test_a_site_of_ones_own_is_judged(state, words, fused):
    outcome = check(Case(residual_call(own(fused), "mine"), "odd", "random"), CPU)
    assert state == outcome.state, outcome.reason
    assert words is None or words in str(outcome.reason)
    assert bool(outcome.keys) is (state is State.EQUAL)


def test_one_rounding_less_is_found_by_ties():
    outcome = check(Case(residual_call(own(rounds_once), "mine"), "odd", "ties"), CPU)
    assert State.DIFFERS == outcome.state


def wrong_where_constant(residual, update, gate, text_gate=None, text_rows=0, out=None):
    result = gated_residual.reference(residual, update, gate, text_gate, text_rows)
    return result + 1 if bool((residual == residual.flatten()[0]).all()) else result


def call_of_constants(value):
    """A fill that a gate decides nothing about: one value throughout."""
    return lambda block: block.fill_(value)


@pytest.mark.parametrize(
    ("state", "fused", "value"),
    [
        pytest.param(State.EQUAL, exact, 2.0, id="constant"),
        pytest.param(State.EQUAL, exact, float("nan"), id="NaN"),
        pytest.param(State.DIFFERS, wrong_where_constant, 2.0, id="wrong where constant"),
    ],
)
def test_values_that_prove_nothing_can_still_show_a_fault(state, fused, value):
    outcome = check_call(residual_call(own(fused), "mine"), CPU, call_of_constants(value), "odd", "constant")
    assert (state, frozenset()) == (outcome.state, outcome.keys), outcome.reason


def test_a_site_whose_functions_fail_is_an_outcome():
    def fails(*_, **__):
        raise ValueError("no such luck")

    for state, words, site in (
        (State.DECLINES, "no such luck", own(exact, reject_reason=fails)),
        (State.DIFFERS, "no such luck", own(exact, reference=fails)),
        (State.DIFFERS, "no such luck", own(fails)),
        (State.DIFFERS, "returns something else than eager", own(lambda *_, **__: "text")),
    ):
        outcome = check(Case(residual_call(site, "mine"), "odd", "random"), CPU)
        assert (state, frozenset()) == (outcome.state, outcome.keys)
        assert words in str(outcome.reason)
        assert "\n" not in str(outcome.reason)


def test_a_reason_declines_and_certifies_nothing():
    site = own(exact, reject_reason=lambda *_, **__: "it is Tuesday")
    outcome = check(Case(residual_call(site, "mine"), "odd", "random"), CPU)
    assert (State.DECLINES, "it is Tuesday", frozenset()) == (outcome.state, outcome.reason, outcome.keys)


@pytest.mark.parametrize(("state", "reference"), [(State.EQUAL, exact), (State.DIFFERS, rounds_once)])
def test_a_reference_of_ones_own_must_be_what_is_replaced(state, reference):
    outcome = check(Case(residual_call(own(exact, reference=reference), "mine"), "odd", "random"), CPU)
    assert state == outcome.state
    assert state is State.EQUAL or "its reference is not what it replaces" in str(outcome.reason)


def test_a_site_on_a_module_runs_a_copy_of_it_with_weights():
    with torch.device("meta"):
        norm = nn.LayerNorm(32, dtype=torch.bfloat16)
    x = torch.empty(2, 5, 32, dtype=torch.bfloat16, device="meta")
    results = {}
    for name, fused in (
        ("exact", lambda module, x: F.layer_norm(x, (32,), module.weight, module.bias, module.eps)),
        ("without weight", lambda module, x: F.layer_norm(x, (32,), None, module.bias, module.eps)),
    ):
        site = UserSite("mine", fused=fused, modules="norm")
        outcome = check(Case(SiteCall("mine", layout_of("norm", (x,), {}), site, norm), "small", "random"), CPU)
        results[name] = outcome.state
    assert {"exact": State.EQUAL, "without weight": State.DIFFERS} == results
    assert not real_module(norm, CPU).weight.is_meta


def test_the_keys_of_a_site_with_any_difference_are_not_certified():
    good = check(Case(residual_call(own(exact), "good"), "odd", "random"), CPU)
    bad = [check(Case(residual_call(own(fused), "bad"), "odd", "random"), CPU) for fused in (exact, rounds_once)]
    keys = certified_keys([good, *bad])
    assert {"good"} == set(keys)
    assert keys["good"][0].startswith("('gated_residual', (torch.Size([1, 40, 64]), (2560, 64, 1), torch.bfloat16")


def test_pointwise_kernels_see_every_finite_value_and_others_do_not():
    norm = SiteCall("n", layout_of("layernorm_modulate", (torch.empty(1, 2, 8, device="meta"),), {}))
    pointwise = [case.values for case in cases_for([residual_call()], "odd", edge_values=True)]
    assert ["random", *EDGE_VALUES] == pointwise
    assert "every finite bf16 value" not in [case.values for case in cases_for([norm], "odd", edge_values=True)]
    assert ["random"] == [case.values for case in cases_for([norm], "real", edge_values=False)]


@pytest.mark.parametrize("name", VALUES)
def test_values_are_what_they_are_called_and_repeat(name):
    first, second = (torch.empty(70_000, dtype=torch.bfloat16) for _ in range(2))
    filler(name, 3, CPU)(first)
    filler(name, 3, CPU)(second)
    assert torch.equal(first.view(torch.int16), second.view(torch.int16))
    codes = first.view(torch.int16)
    smallest_normal = torch.finfo(torch.bfloat16).smallest_normal
    claims = {
        "random": first.isfinite().all() and first.std() > 0.1,
        "every finite bf16 value": codes.unique().numel() == FINITE_BF16 and first.isfinite().all(),
        "subnormals": (first.abs() < smallest_normal).float().mean() > 0.4 and (codes == -0x8000).any(),
        "ties": (first.abs() <= 2).all() and (first.float() * 256 == (first.float() * 256).round()).all(),
        "constant rows": all(band.unique().numel() == 1 for band in first.split(4096)),
        "NaN and infinities": first.isnan().any() and first.isposinf().any() and first.isneginf().any(),
        "one NaN or infinity in many rows": 0 < (~first.isfinite()).sum() < 40,
    }
    assert bool(claims[name])
