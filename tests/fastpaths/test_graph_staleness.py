"""A graph never outlives the branches it took, nor the memory it reads."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from fuseproof.fastpaths.graph_state import ModuleState
from fuseproof.fastpaths.graphs import GraphRunner
from tests.fastpaths.graph_runners import captured, counts, doubled, rows, runner


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def test_another_quality_is_another_key() -> None:
    graphed = captured(doubled, rows(), quality="lossless")
    graphed.quality = "high"
    graphed(rows())
    assert {"captured": 1, "missed": 1} == counts(graphed)
    assert "quality captured 'lossless', asked 'high'" in graphed.report()["reason"]


class Mounted:
    """A function whose branch depends on what is mounted; the epoch says which."""

    def __init__(self) -> None:
        self.epoch = 1
        self.factor = 2.0

    def mount(self, factor: float) -> None:
        self.epoch += 1
        self.factor = factor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def test_another_epoch_never_replays_a_stale_graph() -> None:
    function = Mounted()
    graphed = captured(function, rows(), epoch=lambda: function.epoch)
    function.mount(3.0)
    assert torch.equal(rows() * 3, graphed(rows()))
    assert {"captured": 1, "missed": 1} == counts(graphed)
    assert "epoch (mount and quality) captured 1, asked 2" in graphed.report()["reason"]
    with graphed.capturing():
        assert torch.equal(rows() * 3, graphed(rows()))
    assert torch.equal(rows(seed=4) * 3, graphed(rows(seed=4)))
    assert {"captured": 2, "missed": 1, "replayed": 1} == counts(graphed)


def test_epochs_that_take_turns_keep_a_graph_each() -> None:
    """The qualities of one mount are epochs that come back, with the branches that they had."""
    function = Mounted()
    graphed = runner(function, epoch=lambda: function.epoch)
    for capturing in (True, False):
        with graphed.capturing() if capturing else nullcontext():
            for function.epoch, function.factor in ((1, 2.0), (2, 3.0)):
                assert torch.equal(rows() * function.factor, graphed(rows()))
    assert {"captured": 2, "replayed": 2} == counts(graphed)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.register_buffer("shift", torch.ones(8))
        self.table = torch.full((8,), 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)) * self.table + self.shift


def graphed_module(model: nn.Module) -> GraphRunner:
    state = ModuleState(model)
    return captured(model.forward, rows(), state=state, explain_state=state.explain)


def test_new_values_in_the_same_memory_are_seen() -> None:
    model = Small()
    graphed = graphed_module(model)
    model.linear.weight.mul_(-3)
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})
    model.linear.bias.data.fill_(2.0)
    assert torch.equal(model(rows(seed=2)), graphed(rows(seed=2)))
    assert {"captured": 1, "replayed": 1} == counts(graphed)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(
            lambda model: setattr(model.linear.weight, "data", torch.randn(8, 8)), "linear.weight moved", id="data"
        ),
        pytest.param(
            lambda model: setattr(model.linear, "weight", nn.Parameter(torch.randn(8, 8))),
            "linear.weight moved",
            id="new parameter",
        ),
        pytest.param(
            lambda model: model.load_state_dict(
                {name: value.clone() + 1 for name, value in model.state_dict().items()}, assign=True
            ),
            "shift, linear.weight, linear.bias and 2 more moved",
            id="reloaded by assignment",
        ),
        pytest.param(lambda model: setattr(model, "shift", torch.zeros(8)), "shift moved", id="buffer"),
        pytest.param(lambda model: setattr(model, "table", torch.zeros(8)), "table moved", id="tensor attribute"),
        pytest.param(lambda model: setattr(model, "linear", nn.Linear(8, 8)), "linear changed", id="submodule"),
        pytest.param(lambda model: setattr(model.linear, "bias", None), "the model changed", id="parameter gone"),
        pytest.param(
            lambda model: model.linear.register_forward_hook(lambda *call: call[2] + 1), "linear changed", id="hook"
        ),
        pytest.param(
            lambda model: setattr(model.norm, "forward", lambda x: x * 7), "norm.forward changed", id="other forward"
        ),
        pytest.param(
            lambda model: model.linear.register_parameter("extra", nn.Parameter(torch.ones(1))),
            "linear changed",
            id="parameter added",
        ),
        pytest.param(lambda model: model.norm.eval(), "norm.training changed", id="mode"),
    ],
)
def test_moved_weights_drop_the_graph(change: Any, named: str) -> None:
    model = Small()
    graphed = graphed_module(model)
    change(model)
    for seed in (1, 2):
        assert torch.equal(model(rows(seed=seed)), graphed(rows(seed=seed)))
    assert {"captured": 1, "rejected": 1, "missed": 2} == counts(graphed)
    assert f"rejected: a graph was dropped: {named} after capture" in graphed.report()["reason"]
    assert f"missed: its graph was dropped: {named} after capture" in graphed.report()["reason"]
    with graphed.capturing():
        graphed(rows())
    assert torch.equal(model(rows(seed=3)), graphed(rows(seed=3)))
    assert 1 == graphed.report()["replayed"]


def test_what_a_new_submodule_holds_is_watched_too() -> None:
    model = Small()
    graphed = graphed_module(model)
    model.linear = nn.Linear(8, 8)
    with graphed.capturing():
        graphed(rows())
    model.linear.weight.data = torch.randn(8, 8)
    assert torch.equal(model(rows()), graphed(rows()))
    assert {"captured": 2, "rejected": 2, "missed": 1} == counts(graphed)


def test_an_attention_backend_chosen_after_capture_drops_the_graph() -> None:
    class Processor:
        _attention_backend: str | None = None

    model = Small()
    model.linear.processor = Processor()
    graphed = graphed_module(model)
    model.linear.processor._attention_backend = "native"
    graphed(rows())
    assert "linear.processor moved after capture" in graphed.report()["reason"]


def test_replaced_weights_are_not_kept_alive() -> None:
    model = Small()
    state = ModuleState(model)
    state()
    old = weakref.ref(model.linear.weight)
    model.linear.weight = nn.Parameter(torch.randn(8, 8))
    assert old() is None


def test_a_switch_of_torch_is_part_of_the_key() -> None:
    graphed = captured(lambda x: x @ x.t(), rows())
    with torch.autocast("cpu", torch.bfloat16):
        result = graphed(rows())
    assert torch.bfloat16 == result.dtype
    assert {"captured": 1, "missed": 1} == counts(graphed)
    assert "autocast captured None, asked bfloat16" in graphed.report()["reason"]


def test_casts_under_autocast_are_part_of_the_graph() -> None:
    linear = nn.Linear(8, 8)
    graphed = runner(linear.forward)
    with torch.autocast("cpu", torch.bfloat16):
        with graphed.capturing():
            graphed(rows())
        linear.weight.mul_(2)
        result = graphed(rows())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear(rows()), result)
    assert {"captured": 1, "replayed": 1} == counts(graphed)
