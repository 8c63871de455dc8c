"""What becomes of a call at a site of one's own: faults are sentences, what is handed out may be written, no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths import Gate, GateMode, UserSite
from fuseproof.fastpaths.kernels import gelu_tanh
from fuseproof.fastpaths.operations import GatedOperation
from tests.fastpaths.placed_sites import Counting, Scaled, called, eager, place, raising, reasons


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def module() -> Scaled:
    return Scaled()


@pytest.mark.parametrize(
    ("words", "later"),
    [
        pytest.param(r"fused raised ValueError in .*placed_sites.py, line \d+: no luck", raising, id="exception"),
        pytest.param("fused returned None, and built otherwise", lambda module, x: None, id="None"),
        pytest.param(r"fused returned a float32 tensor of shape \[8\]", lambda module, x: x[0] * 1, id="shape"),
        pytest.param("asked to exit with status 0", lambda module, x: exit_quietly(), id="exit"),
    ],
)
def test_a_failure_after_verification_is_a_sentence(module, words, later):
    operation, x = place(module, Counting(2, later)), torch.ones(2, 8)
    called(operation, x)
    with pytest.raises(FuseproofError, match=words) as raised:
        called(operation, x)
    assert 1 == raised.value.exit_code
    assert raised.value.next_step


def exit_quietly():
    raise SystemExit(0)


def test_a_request_to_exit_is_a_sentence_at_first_sight_too(module):
    with pytest.raises(FuseproofError, match="fused raised SystemExit"):
        called(place(module, lambda module, x: exit_quietly()), torch.ones(2, 8))


def test_an_interrupt_passes(module):
    def interrupted(module, x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        called(place(module, interrupted), torch.ones(2, 8))


def test_with_the_gate_off_a_result_without_a_tensor_is_a_sentence(module):
    operation = place(module, lambda module, x: None, Gate("mine", GateMode.OFF))
    with pytest.raises(FuseproofError, match="fused returned None, no tensor"):
        called(operation, torch.ones(2, 8))


def test_a_site_that_calls_its_module_gets_the_modules_own_forward(module):
    operation = place(module, lambda module, x: called(operation, x))
    x = torch.ones(2, 8)
    assert torch.equal(eager(module, x), called(operation, x))
    assert [] == reasons(operation.gate)


ALLOWED = "; it returns None, or why the call cannot run fused"


def zeroing_reason(module, x):
    x.zero_()


@pytest.mark.parametrize(
    ("expected", "reject_reason"),
    [
        (f"reject_reason returned False{ALLOWED}", lambda module, x: False),
        (f"reject_reason returned ''{ALLOWED}", lambda module, x: ""),
        (f"reject_reason returned a float32 tensor of shape [2, 8]{ALLOWED}", lambda module, x: x),
        ("reject_reason wrote into its input x", zeroing_reason),
        ("two lines, and \\udcff", lambda module, x: "two\nlines, and \udcff"),
    ],
    ids=["False", "empty", "tensor", "writes", "unprintable"],
)
def test_a_reject_reason_is_checked_too(module, expected, reject_reason):
    operation, x = place(module, eager, reject_reason=reject_reason), torch.ones(2, 8)
    assert torch.equal(eager(module, torch.ones(2, 8)), called(operation, x))
    assert [expected] == reasons(operation.gate)


def test_a_reject_reason_that_raises_declines(module):
    operation = place(module, eager, reject_reason=raising)
    called(operation, torch.ones(2, 8))
    assert "reject_reason raised ValueError: no luck" in reasons(operation.gate)[0]


def test_what_it_prints_goes_to_stderr(module, capsys):
    def printing(module, x):
        print("noise")  # noqa: T201
        return eager(module, x)

    operation = place(module, printing, reject_reason=lambda module, x: print("asked"))  # noqa: T201
    for _ in range(2):
        called(operation, torch.ones(2, 8))
    streams = capsys.readouterr()
    assert ("", 1, 3) == (streams.out, streams.err.count("asked"), streams.err.count("noise"))


def test_with_gradients_recorded_nothing_of_the_site_is_called(module):
    operation = place(module, raising, reject_reason=raising)
    with torch.enable_grad():
        assert called(operation, torch.ones(2, 8)).requires_grad
    assert {"gradients are recorded": 1} == operation.gate.eager_causes


def stand_in(fused: Any) -> GatedOperation:
    owner, gate = Gate("owner"), Gate("mine")
    owner.stand_ins["gelu_tanh"] = UserSite("mine", fused, replaces="gelu_tanh"), gate
    return GatedOperation("gelu_tanh", gelu_tanh, owner)


def into_out(x, out):
    return out.copy_(gelu_tanh.reference(x))


@pytest.mark.parametrize("in_place", [False, True], ids=["beside", "in place"])
@pytest.mark.parametrize("fused", [lambda x, out=None: gelu_tanh.reference(x), into_out], ids=["fresh", "out"])
def test_a_stand_in_may_return_fresh_memory_or_the_out_it_was_handed(fused, in_place):
    x = torch.linspace(-3, 3, 48).reshape(2, 3, 8)
    expected, operation = gelu_tanh.reference(x), stand_in(fused)
    result = operation(x, out=x if in_place else torch.empty_like(x))
    assert torch.equal(expected, result)
    assert ([], 1) == (reasons(operation.gate), operation.gate.verified_keys())


@pytest.mark.parametrize(
    ("words", "fused"),
    [
        ("fused wrote into its input x", lambda x, out: into_out(x.mul_(2), out)),
        ("its result is a view of an input", lambda x, out: x.view(2, 3, 8)),
        ("not bit-exact", lambda x, out: out.copy_(x)),
        ("a tuple against a tensor", lambda x, out: (into_out(x, out),)),
    ],
    ids=["writes its input", "returns its input", "wrong", "tuple"],
)
def test_a_stand_in_may_do_nothing_else(words, fused):
    x, out = torch.linspace(-3, 3, 48).reshape(2, 3, 8), torch.empty(2, 3, 8)
    expected, before, operation = gelu_tanh.reference(x), x.clone(), stand_in(fused)
    for _ in range(2):
        assert torch.equal(expected, operation(x, out=out))
    assert torch.equal(before, x)
    assert words in reasons(operation.gate)[0]


def test_a_wrong_stand_in_that_works_in_place_leaves_its_input_as_it_was():
    x = torch.linspace(-3, 3, 48).reshape(2, 3, 8)
    before, operation = x.clone(), stand_in(lambda x, out: out.zero_())
    assert torch.equal(gelu_tanh.reference(before), operation(x, out=x))
    assert torch.equal(before, x)
