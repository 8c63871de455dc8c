"""Which calls share a graph, which do not, and how a miss names the difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.fastpaths.graph_runners import captured, counts, doubled, nested, rows, runner


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@dataclass(frozen=True)
class Change:
    """A call that differs from the captured ``nested(rows(), pair=(rows(), [rows(), 0.5]), options=None)``."""

    x: Any = None
    first: Any = None
    scale: Any = 0.5
    options: Any = None
    more: tuple[tuple[str, Any], ...] = ()

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x = rows() if self.x is None else self.x
        pair = (rows() if self.first is None else self.first, [rows(), self.scale])
        return (x,), {"pair": pair, "options": self.options, **dict(self.more)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(Change(x=rows(1)), "x shape captured (3, 8), asked (1, 8)", id="shape"),
        pytest.param(Change(x=rows().t().contiguous().t()), "x strides captured (8, 1)", id="strides"),
        pytest.param(Change(x=rows().double()), "x dtype captured float32, asked float64", id="dtype"),
        pytest.param(Change(first=rows(1)), "pair[0] shape captured (3, 8), asked (1, 8)", id="shape inside"),
        pytest.param(Change(x=torch.arange(25.0)[1:].view(3, 8)), "x alignment captured 16, asked 4", id="alignment"),
        pytest.param(Change(scale=0.25), "pair[1][1] captured 0.5, asked 0.25", id="constant"),
        pytest.param(Change(scale=-0.0), "pair[1][1] captured 0.5, asked -0.0", id="negative zero"),
        pytest.param(Change(options=1), "options captured None, asked 1", id="constant for nothing"),
        pytest.param(Change(options={}), "options captured None, asked a dict of ()", id="structure"),
        pytest.param(Change(more=(("flip", True),)), "flip captured False, asked True", id="another argument"),
    ],
)
def test_a_call_that_differs_is_missed_and_eager(change: Change, said: str) -> None:
    args, kwargs = Change().arguments()
    graphed = runner(nested)
    with graphed.capturing():
        graphed(*args, **kwargs)
    args, kwargs = change.arguments()
    torch.testing.assert_close(nested(*args, **kwargs), graphed(*args, **kwargs), rtol=0, atol=0)
    assert {"captured": 1, "missed": 1} == counts(graphed)
    assert said in graphed.report()["reason"]


@pytest.mark.parametrize(
    ("captured_with", "asked_with"),
    [
        pytest.param(1, 1.0, id="1 is not 1.0"),
        pytest.param(1, True, id="1 is not True"),
        pytest.param(0.0, -0.0, id="0.0 is not -0.0"),
        pytest.param("1", 1, id="text is no number"),
        pytest.param((1,), [1], id="a tuple is no list"),
        pytest.param(torch.float32, torch.bfloat16, id="dtypes"),
        pytest.param({"a": 1, "b": 2}, {"b": 2, "a": 1}, id="order of a dict"),
    ],
)
def test_constants_are_told_apart(captured_with: Any, asked_with: Any) -> None:
    graphed = captured(lambda x, option: x + 1, rows(), captured_with)
    graphed(rows(), captured_with)
    assert {"captured": 1, "replayed": 1} == counts(graphed)
    graphed(rows(), asked_with)
    assert {"captured": 1, "replayed": 1, "missed": 1} == counts(graphed)


def test_nan_is_one_constant() -> None:
    graphed = captured(lambda x, fill: x + 1, rows(), float("nan"))
    graphed(rows(), float("nan"))
    assert 1 == graphed.report()["replayed"]


def test_one_value_replays_from_any_address() -> None:
    schedule = torch.arange(5.0)
    graphed = captured(lambda t: t * 10, schedule[0].expand(2))
    assert [10.0, 20.0, 30.0] == [float(graphed(schedule[step].expand(2))[1]) for step in (1, 2, 3)]
    assert 3 == graphed.report()["replayed"]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda graphed, x, y: graphed(x, y), id="positions"),
        pytest.param(lambda graphed, x, y: graphed(x, y=y), id="a keyword"),
        pytest.param(lambda graphed, x, y: graphed(y=y, x=x), id="keywords"),
        pytest.param(lambda graphed, x, y: graphed(x, y, 2.0, None), id="defaults spelled out"),
        pytest.param(lambda graphed, x, y: graphed(x, y=y, mask=None), id="a default by keyword"),
    ],
)
def test_calls_that_say_the_same_have_one_graph(call: Any) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, scale: float = 2.0, mask: Any = None) -> torch.Tensor:
        return x - y * scale

    graphed = captured(function, rows(seed=1), rows(seed=2))
    assert torch.equal(function(rows(seed=3), rows(seed=4)), call(graphed, rows(seed=3), rows(seed=4)))
    assert {"captured": 1, "replayed": 1} == counts(graphed)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda f: f(rows(), x=rows()), id="given twice"),
        pytest.param(lambda f: f(rows(), rows()), id="one too many"),
        pytest.param(lambda f: f(rows(), other=1), id="unknown keyword"),
        pytest.param(lambda f: f(), id="one too few"),
    ],
)
def test_a_wrong_call_fails_as_it_does_without_graphs(call: Any) -> None:
    graphed = captured(doubled, rows())
    for function in (doubled, graphed):
        with pytest.raises(TypeError, match=r"doubled\(\)"):
            call(function)


def test_a_function_that_takes_anything_keeps_positions() -> None:
    graphed = captured(lambda *args, **kwargs: args[0] + 1, rows())
    assert torch.equal(rows(seed=2) + 1, graphed(rows(seed=2)))
    graphed(rows(1))
    assert "argument 0 shape captured (3, 8), asked (1, 8)" in graphed.report()["reason"]


def test_the_order_of_keywords_does_not_matter() -> None:
    def subtract(*, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left - right

    graphed = runner(subtract)
    left, right = rows(seed=1), rows(seed=2)
    with graphed.capturing():
        graphed(left=left, right=right)
    assert torch.equal(left - right, graphed(right=right, left=left))
    assert {"captured": 1, "replayed": 1} == counts(graphed)
