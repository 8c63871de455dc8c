"""What a site of one's own may not do, and that nothing it does at first sight reaches the caller's bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths import Gate
from tests.fastpaths.placed_sites import Counting, Scaled, called, eager, place, raising, reasons


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def module() -> Scaled:
    return Scaled()


def zeroing(module, x):
    result = eager(module, x)
    x.zero_()
    return result


def clamping_before_it_raises(module, x):
    x.clamp_(0, 0)
    raise RuntimeError("too late")


def answering_in_its_input(module, x):
    return x.copy_(eager(module, x))


def a_view_of_its_weight(module, x):
    return module.weight[:4].expand(2, 4)


def recording_gradients(module, x):
    torch.set_grad_enabled(True)
    return eager(module, x)


def drawing(module, x):
    torch.rand(1)
    return eager(module, x)


def changing_the_default_dtype(module, x):
    torch.set_default_dtype(torch.float64)
    return eager(module, x)


class Buffers:
    """Answers in ``number`` buffers of its own, taken in turn."""

    def __init__(self, number: int) -> None:
        self.number, self.calls, self.buffers = number, 0, {}

    def __call__(self, module, x):
        self.calls += 1
        result = eager(module, x)
        return self.buffers.setdefault(self.calls % self.number, torch.empty_like(result)).copy_(result)


@pytest.mark.parametrize(
    ("words", "fused"),
    [
        pytest.param("fused wrote into its input x", zeroing, id="input"),
        pytest.param("its input x; RuntimeError at first sight: too late", clamping_before_it_raises, id="both"),
        pytest.param("wrote into its input x; its result is a view of an input", answering_in_its_input, id="alias"),
        pytest.param("a later call would overwrite an earlier result", Buffers(1), id="one buffer"),
        pytest.param("keeps hold of a result", Buffers(2), id="two buffers in turn"),
        pytest.param("keeps hold of a result", Buffers(3), id="three buffers in turn"),
        pytest.param("its result records gradients", recording_gradients, id="gradients"),
        pytest.param("changed the state of torch's random generator", drawing, id="random numbers"),
        pytest.param("changed torch's default dtype", changing_the_default_dtype, id="default dtype"),
        pytest.param("not deterministic", Counting(1, lambda module, x: eager(module, x) * 2), id="another second run"),
        pytest.param("None against a tensor", lambda module, x: None, id="None"),
        pytest.param("a str against a tensor", lambda module, x: "hello", id="text"),
        pytest.param("a list against a tensor", lambda module, x: [eager(module, x)], id="list"),
        pytest.param("a object against a tensor", lambda module, x: object(), id="object"),
        pytest.param(r"ValueError at first sight: no luck \x1b[31m (placed_sites.py", raising, id="exception"),
        pytest.param("RecursionError at first sight", lambda module, x: deeper(x), id="recursion"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_rejected_by_name_and_the_bits_are_eagers(module, words, fused):
    x = torch.linspace(-3, 3, 16).reshape(2, 8)
    before, expected, random = x.clone(), eager(module, x), torch.get_rng_state()
    operation = place(module, fused)
    for _ in range(3):
        assert torch.equal(expected, called(operation, x))
    assert torch.equal(before, x)
    assert torch.equal(random, torch.get_rng_state())
    assert (torch.float32, False) == (torch.get_default_dtype(), torch.is_grad_enabled())
    assert 1 == len(reasons(operation.gate))
    assert words in reasons(operation.gate)[0]
    assert (0, 3, 0) == (operation.gate.calls_fused, operation.gate.calls_eager, operation.gate.verified_keys())


def deeper(x):
    return deeper(x)


def test_what_is_right_is_accepted_and_then_runs_alone(module):
    operation, x = place(module, eager), torch.ones(2, 8)
    for _ in range(3):
        assert torch.equal(module(x), called(operation, x))
    gate = operation.gate
    assert ([], 3, 1, 1) == (reasons(gate), gate.calls_fused, gate.verified_keys(), gate.first_sights)


def test_a_view_of_an_input_is_right_where_eager_returns_the_same_view(module):
    operation = place(module, eager)
    called(operation, torch.ones(2, 8), as_view=True)
    assert [] == reasons(operation.gate)


def test_a_result_in_a_weight_is_rejected(module):
    module.forward = lambda x: module.weight.detach()[:4].clone().expand(2, 4)
    operation = place(module, a_view_of_its_weight)
    called(operation, torch.ones(2, 8))
    assert ["its result is a view of a weight, and eager's is not"] == reasons(operation.gate)


@pytest.mark.parametrize("name", ["weight", "offset"])
@pytest.mark.parametrize("part", ["fused", "reject_reason"])
def test_a_changed_weight_ends_the_request(module, name, part):
    def spoiling(module, x):
        getattr(module, name).data[3] += 1
        return eager(module, x) if part == "fused" else None

    operation = place(module, spoiling) if part == "fused" else place(module, eager, reject_reason=spoiling)
    with pytest.raises(FuseproofError, match=f"site 'mine': {part} wrote into its module's weight '{name}'") as raised:
        called(operation, torch.ones(2, 8))
    assert 1 == raised.value.exit_code


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.ones(2, 16)[:, ::2], id="strided"),
        pytest.param(torch.ones(1, 8).expand(2, 8), id="expanded"),
        pytest.param(torch.ones(2, 8, dtype=torch.bfloat16), id="bfloat16"),
    ],
)
def test_inputs_of_any_layout_are_put_back(module, tensor):
    def spoiling(module, x):
        x[:1].fill_(7)
        return eager(module, x)

    operation = place(module, spoiling)
    called(operation, tensor)
    assert ["fused wrote into its input x"] == reasons(operation.gate)
    assert torch.equal(torch.ones(2, 8), tensor.float())


def test_inputs_made_under_inference_mode_are_put_back(module):
    with torch.inference_mode():
        x = torch.ones(2, 8)
        operation = place(module, zeroing)
        called(operation, x)
    assert torch.equal(torch.ones(2, 8), x)


def test_a_module_that_writes_into_its_own_input_is_not_compared():
    module = nn.ReLU(inplace=True)
    operation, x = place(module, lambda module, x: x.clamp(min=0)), torch.tensor([-1.0, 1.0])
    called(operation, x)
    assert ["eager itself writes into its input x, so nothing can be compared"] == reasons(operation.gate)
    assert torch.equal(torch.tensor([0.0, 1.0]), x), "as eager leaves it"


@pytest.mark.parametrize("later", [zeroing, Buffers(1), raising, lambda module, x: eager(module, x) * 2])
def test_what_turns_wrong_later_is_seen_when_every_call_is_checked(module, later):
    gate = Gate("mine", verifies_every_call=True)
    operation, x = place(module, Counting(4, later), gate), torch.linspace(-3, 3, 16).reshape(2, 8)
    expected = eager(module, x)
    for _ in range(3):
        assert torch.equal(expected, called(operation, x))
    assert (2, 1, 0) == (gate.calls_fused, gate.calls_eager, gate.verified_keys())
    assert "when checked again" in reasons(gate)[0]
