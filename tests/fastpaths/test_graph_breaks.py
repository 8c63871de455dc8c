"""Eager calls between the segments of a graph: their order, what they read, and what they may return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths.graphs import GraphRunner
from tests.fastpaths.fake_capture import FakeCapture


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def rows(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))


def graphed_around(
    between: Callable[..., Any], make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> tuple[GraphRunner, FakeCapture]:
    """A runner over ``make(between)`` with ``between`` broken out of its graph."""
    device = FakeCapture()
    parts: dict[str, Callable[..., Any]] = {}

    def function(*args: Any) -> Any:
        return make(parts["between"])(*args)

    graphed = GraphRunner(function, name="function", device=device)
    parts["between"] = graphed.break_around(between, "between")
    return graphed, device


def twice(between: Callable[..., Any]) -> Callable[..., Any]:
    def function(x: torch.Tensor) -> torch.Tensor:
        first = between(x * 2, 1)
        return between(first + x, 2) - 1

    return function


def test_segments_and_eager_calls_run_in_order_on_real_values() -> None:
    seen: list[tuple[int, torch.Tensor]] = []

    def between(x: torch.Tensor, which: int) -> torch.Tensor:
        seen.append((which, x.clone()))
        return x.sin() + float(x.abs().max())  # reads a value on the host: no graph could

    graphed, device = graphed_around(between, twice)
    with graphed.capturing():
        graphed(rows())
    assert 3 == device.segments
    assert [1, 2] * 3 == [which for which, _ in seen]  # eager, capture, proof
    assert all(torch.equal(seen[index % 2][1], x) for index, (_, x) in enumerate(seen))
    seen.clear()
    x = rows(5)
    result = graphed(x)
    assert [1, 2] == [which for which, _ in seen]
    assert torch.equal(x * 2, seen[0][1])
    assert torch.equal(twice(between)(x), result)
    report = graphed.report()
    assert (1, 1, 3, ["between"]) == (report["captured"], report["replayed"], report["segments"], report["breaks"])


def test_an_eager_call_sees_python_as_it_is_now() -> None:
    factor = [2.0]
    graphed, _ = graphed_around(lambda x: x * factor[0], lambda between: lambda x: between(x + 1) + 1)
    with graphed.capturing():
        graphed(rows())
    factor[0] = 3.0
    assert torch.equal((rows(1) + 1) * 3 + 1, graphed(rows(1)))


def test_nested_results_and_keywords_cross_a_break() -> None:
    def between(pair: Any, *, scale: Any) -> Any:
        left, right = pair
        return {"sum": left + right * scale["by"], "more": [left.t(), (None, 3)]}

    def make(broken: Callable[..., Any]) -> Callable[..., Any]:
        def function(x: torch.Tensor) -> torch.Tensor:
            result = broken((x + 1, x - 1), scale={"by": 2})
            return result["sum"] + result["more"][0].t() * result["more"][1][1]

        return function

    graphed, _ = graphed_around(between, make)
    with graphed.capturing():
        graphed(rows())
    assert torch.equal(make(between)(rows(3)), graphed(rows(3)))
    assert 1 == graphed.report()["replayed"]


def test_a_break_may_write_into_what_it_is_given() -> None:
    def between(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    def make(broken: Callable[..., Any]) -> Callable[..., Any]:
        def function(x: torch.Tensor) -> torch.Tensor:
            inner = x + 1
            return broken(inner) + inner

        return function

    graphed, _ = graphed_around(between, make)
    with graphed.capturing():
        graphed(rows())
    assert torch.equal(make(between)(rows(4)), graphed(rows(4)))
    assert 1 == graphed.report()["replayed"]


def test_a_break_inside_a_break_is_a_plain_call() -> None:
    device = FakeCapture()
    parts: dict[str, Callable[..., Any]] = {}
    graphed = GraphRunner(lambda x: parts["outer"](x + 1) * 2, name="function", device=device)
    parts["inner"] = graphed.break_around(lambda x: x + 10, "inner")
    parts["outer"] = graphed.break_around(lambda x: parts["inner"](x) + 100, "outer")
    with graphed.capturing():
        graphed(rows())
    assert 2 == device.segments
    assert torch.equal((rows(2) + 1 + 10 + 100) * 2, graphed(rows(2)))


def test_breaks_at_both_ends_leave_empty_segments() -> None:
    graphed, device = graphed_around(lambda x: x + 1, lambda between: lambda x: between(between(x)))
    with graphed.capturing():
        graphed(rows())
    assert 3 == device.segments
    assert torch.equal(rows(2) + 1 + 1, graphed(rows(2)))


@pytest.mark.parametrize(
    ("later", "said"),
    [
        pytest.param(lambda x: x[:1] + 1, "shape captured (3, 8), asked (1, 8)", id="shape"),
        pytest.param(lambda x: (x + 1).double(), "dtype captured float32, asked float64", id="dtype"),
        pytest.param(lambda x: (x + 1, 2), "asked a tuple of 2", id="structure"),
    ],
)
def test_a_break_that_returns_something_else_fails_loudly(later: Callable[..., Any], said: str) -> None:
    behaviour: list[Callable[..., Any]] = [lambda x: x + 1]

    def between(x: torch.Tensor) -> Any:
        return behaviour[0](x)

    graphed, _ = graphed_around(between, lambda broken: lambda x: broken(x) * 2)
    with graphed.capturing():
        graphed(rows())
    behaviour[0] = later
    with pytest.raises(FuseproofError, match="the eager call between inside a CUDA graph") as caught:
        graphed(rows())
    assert said in caught.value.message
    behaviour[0] = lambda x: x + 1
    assert torch.equal((rows() + 1) * 2, graphed(rows()))


def test_a_break_that_fails_while_capturing_rejects_the_graph() -> None:
    calls = []

    def between(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        if len(calls) == 2:
            raise OSError("the break broke")
        return x + 1

    graphed, device = graphed_around(between, lambda broken: lambda x: broken(x) * 2)
    with graphed.capturing():
        assert torch.equal((rows() + 1) * 2, graphed(rows()))
    report = graphed.report()
    assert (0, 1, 0) == (report["captured"], report["rejected"], device.abandoned)
    assert "OSError during capture: the break broke" in report["reason"]
    assert torch.equal((rows() + 1) * 2, graphed(rows()))


def test_modules_can_be_breaks_by_name() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 8)), nn.LayerNorm(8))
    device = FakeCapture()
    graphed = GraphRunner(model.forward, name="model", device=device)
    replacements = graphed.break_modules(model, ["1.0", "2"])
    with graphed.capturing():
        graphed(rows())
    assert 3 == device.segments
    assert torch.equal(model(rows(7)), graphed(rows(7)))
    assert {"captured": 1, "breaks": ["1.0", "2"]} == {name: graphed.report()[name] for name in ("captured", "breaks")}
    for replacement in replacements:
        replacement.take_off()
    assert not any("forward" in vars(module) for module in model.modules())


def test_an_unknown_module_is_named() -> None:
    graphed = GraphRunner(lambda x: x, name="model", device=FakeCapture())
    with pytest.raises(AttributeError, match="attn"):
        graphed.break_modules(nn.Linear(2, 2), ["attn"])
