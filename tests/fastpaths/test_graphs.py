"""Graphs on a device that records and replays on the CPU: results, counting, failures, and what no graph can answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from fuseproof.fastpaths.graph_segments import CallTally
from fuseproof.fastpaths.graphs import LARGEST_NUMBER_OF_GRAPHS, GraphRunner
from tests.fastpaths.fake_capture import BYTES_A_SEGMENT, FakeCapture
from tests.fastpaths.graph_runners import captured, counts, doubled, nested, rows, runner


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def in_place_inside(x: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros_like(x)
    buffer[1:].copy_(x[1:])
    return buffer.add_(x).mul_(0.5)


@pytest.mark.parametrize(
    ("function", "make"),
    [
        pytest.param(doubled, lambda seed: ((rows(seed=seed),), {}), id="one tensor"),
        pytest.param(doubled, lambda seed: ((rows(7, seed)[::2],), {}), id="strided"),
        pytest.param(doubled, lambda seed: ((rows(seed=seed)[:1].expand(5, 8),), {}), id="expanded"),
        pytest.param(doubled, lambda seed: ((rows(0, seed),), {}), id="empty"),
        pytest.param(in_place_inside, lambda seed: ((rows(seed=seed),), {}), id="in place on its own buffer"),
        pytest.param(
            nested,
            lambda seed: (
                (rows(seed=seed),),
                {"pair": (rows(seed=seed + 1), [rows(seed=seed + 2), 0.5]), "options": {"a": 1, "b": (None, "x")}},
            ),
            id="nested",
        ),
    ],
)
def test_a_replay_is_the_eager_result_for_new_values(function: Any, make: Any) -> None:
    graphed = runner(function)
    with graphed.capturing():
        first_args, first_kwargs = make(0)
        torch.testing.assert_close(
            function(*first_args, **first_kwargs), graphed(*first_args, **first_kwargs), rtol=0, atol=0
        )
    for seed in (10, 20, 10):
        args, kwargs = make(seed)
        torch.testing.assert_close(function(*args, **kwargs), graphed(*args, **kwargs), rtol=0, atol=0)
    assert {"captured": 1, "replayed": 3} == counts(graphed)
    assert graphed.report()["reason"] is None


def test_results_outlive_the_next_replay_and_inputs_stay() -> None:
    x, y = rows(seed=1), rows(seed=2)
    graphed = captured(doubled, x)
    kept_x, kept_y = x.clone(), y.clone()
    first, second = graphed(x), graphed(y)
    second.zero_()
    assert torch.equal(doubled(kept_x), first)
    assert torch.equal(doubled(kept_y), graphed(y))
    assert torch.equal(kept_x, x) and torch.equal(kept_y, y)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: (x + 1).t(), id="transposed"),
        pytest.param(lambda x: (x + 1)[:, 2:6], id="slice with gaps"),
        pytest.param(lambda x: (x + 1)[:1].expand(4, 8), id="expanded"),
        pytest.param(lambda x: (x + 1)[:, ::2], id="every second"),
    ],
)
def test_results_keep_their_strides(function: Any) -> None:
    graphed, x = captured(function, rows()), rows(seed=5)
    expected, result = function(x), graphed(x)
    assert expected.stride() == result.stride()
    assert torch.equal(expected, result)
    assert 1 == graphed.report()["replayed"]


def test_model_outputs_and_named_fields_keep_their_class() -> None:
    graphed = captured(lambda x: Transformer2DModelOutput(sample=x + 1), rows())
    result = graphed(rows(seed=3))
    assert isinstance(result, Transformer2DModelOutput)
    assert torch.equal(rows(seed=3) + 1, result.sample)


def test_nothing_is_captured_outside_of_capturing() -> None:
    graphed = runner(doubled)
    assert torch.equal(doubled(rows()), graphed(rows()))
    assert {"missed": 1} == counts(graphed)
    assert "missed: no graph has been captured" == graphed.report()["reason"]


def test_two_keys_live_side_by_side() -> None:
    device = FakeCapture()
    graphed = runner(doubled, device=device)
    with graphed.capturing():
        for count in (3, 5):
            graphed(rows(count))
    for count in (3, 5, 3):
        assert torch.equal(doubled(rows(count, seed=9)), graphed(rows(count, seed=9)))
    assert {"captured": 2, "replayed": 3} == counts(graphed)
    assert 2 * BYTES_A_SEGMENT == graphed.report()["pool_bytes"]
    assert 2 == device.prepared


def reads_a_value(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if float(x.sum()) > -1e9 else x


def test_a_capture_that_fails_is_rejected_and_the_result_stands() -> None:
    device = FakeCapture()
    graphed = runner(reads_a_value, device=device)
    with graphed.capturing():
        for _ in range(2):
            assert torch.equal(rows() * 2, graphed(rows()))
    assert torch.equal(rows() * 2, graphed(rows()))
    assert {"rejected": 1, "missed": 2} == counts(graphed)
    failure = "RuntimeError during capture: operation not permitted when stream is capturing"
    assert f"rejected: {failure}" in graphed.report()["reason"]
    assert f"missed: its capture was rejected: {failure}" in graphed.report()["reason"]
    assert 1 == device.abandoned


def test_after_a_failed_capture_others_succeed() -> None:
    graphed = runner(lambda x, reads: reads_a_value(x) if reads else doubled(x))
    with graphed.capturing():
        graphed(rows(), True)
        graphed(rows(), False)
    assert torch.equal(doubled(rows(seed=6)), graphed(rows(seed=6), False))
    assert {"captured": 1, "rejected": 1, "replayed": 1} == counts(graphed)


def test_an_exception_of_the_function_itself_is_the_callers() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such thing")

    graphed = runner(fails)
    with graphed.capturing(), pytest.raises(ValueError, match="no such thing"):
        graphed(rows())
    assert {} == counts(graphed)
    with pytest.raises(ValueError, match="no such thing"):  # and the next call is a call again
        graphed(rows())


def test_a_graph_that_disagrees_with_eager_is_rejected() -> None:
    calls = []

    def changes(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x * len(calls)

    graphed = runner(changes)
    with graphed.capturing():
        assert torch.equal(rows(), graphed(rows()))
    assert {"rejected": 1} == counts(graphed)
    assert "a replay differs from eager in" in graphed.report()["reason"]


def test_a_result_of_another_kind_is_rejected() -> None:
    calls = []

    def changes(x: torch.Tensor) -> Any:
        calls.append(x)
        return (x + 1,) if len(calls) == 1 else [x + 1]

    graphed = runner(changes)
    with graphed.capturing():
        graphed(rows())
    assert "a replay does not return what eager returns" in graphed.report()["reason"]


def test_writing_into_an_input_is_rejected() -> None:
    graphed, x = runner(lambda x: x.mul_(2) + 1), rows()
    with graphed.capturing():
        graphed(x)
    assert torch.equal(rows() * 2, x)
    assert {"rejected": 1} == counts(graphed)
    assert "rejected: the function writes into its inputs" == graphed.report()["reason"]


def test_an_answer_that_no_graph_can_give_is_rejected() -> None:
    graphed = runner(lambda x: (x + 1, object()))
    with graphed.capturing():
        graphed(rows())
    assert "the result[1] is a object" in graphed.report()["reason"]


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        pytest.param(torch.empty(3, 8, device="meta"), "value is on meta; graphs are captured on cpu", id="device"),
        pytest.param(object(), "value is a object; a graph takes tensors and plain constants", id="object"),
        pytest.param({1, 2}, "value is a set", id="set"),
        pytest.param(torch.eye(3).to_sparse(), "value is torch.sparse_coo", id="sparse"),
        pytest.param(torch.randn(3, dtype=torch.complex64).conj(), "value is a lazily conjugated", id="conjugated"),
    ],
)
def test_unsupported_arguments_run_eagerly(argument: Any, said: str) -> None:
    graphed = runner(lambda value: ("eager", value))
    with graphed.capturing():
        assert ("eager", argument)[1] is graphed(argument)[1]
    assert {"unsupported": 1} == counts(graphed)
    assert said in graphed.report()["reason"]


def test_gradients_run_eagerly_and_are_right() -> None:
    graphed = captured(doubled, rows())
    with torch.enable_grad():
        x = rows().requires_grad_()
        graphed(x).sum().backward()
    assert torch.equal(torch.full((3, 8), 2.0), x.grad)
    assert {"captured": 1, "unsupported": 1} == counts(graphed)
    assert "gradients are recorded" in graphed.report()["reason"]


def test_somebody_elses_capture_is_not_disturbed() -> None:
    device = FakeCapture()
    graphed = captured(doubled, rows(), device=device)
    device.reason = "the current stream is being captured by somebody else"
    assert torch.equal(doubled(rows()), graphed(rows()))
    assert {"captured": 1, "unsupported": 1} == counts(graphed)


def test_tracing_by_torch_compile_runs_eagerly() -> None:
    graphed = captured(doubled, rows())
    compiled = torch.compile(lambda x: graphed(x) + 1, backend="eager")
    assert torch.equal(doubled(rows()) + 1, compiled(rows()))
    assert 0 == graphed.report()["replayed"]
    assert "torch.compile is tracing this call" in graphed.report()["reason"]


@pytest.mark.parametrize("is_inference", [False, True], ids=["no_grad replays inference", "inference replays no_grad"])
def test_inference_mode_and_no_grad_share_graphs(is_inference: bool) -> None:
    graphed = runner(doubled)
    with torch.inference_mode(not is_inference), torch.no_grad(), graphed.capturing():
        graphed(rows())
    with torch.inference_mode(is_inference), torch.no_grad():
        result = graphed(rows(seed=8))
        assert is_inference == result.is_inference()
        assert torch.equal(doubled(rows(seed=8)), result)
    assert {"captured": 1, "replayed": 1} == counts(graphed)


def test_a_constant_that_changes_with_every_call_does_not_fill_the_memory() -> None:
    graphed = runner(lambda x, step: x * step)
    with graphed.capturing():
        for step in range(LARGEST_NUMBER_OF_GRAPHS + 4):
            assert torch.equal(rows() * step, graphed(rows(), step))
    assert {"captured": LARGEST_NUMBER_OF_GRAPHS, "rejected": 4} == counts(graphed)
    assert "16 graphs are captured already, no more are kept; the nearest: step captured" in str(
        graphed.report()["reason"]
    )


def test_restarting_forgets_calls_and_keeps_what_was_decided() -> None:
    graphed = captured(doubled, rows())
    graphed(rows())
    graphed(rows(5))
    graphed.restart_counting()
    assert {"captured": 1} == counts(graphed)
    assert graphed.report()["reason"] is None
    graphed(rows())
    assert {"captured": 1, "replayed": 1} == counts(graphed)


def test_the_function_may_call_itself() -> None:
    made: list[GraphRunner] = []

    def countdown(x: torch.Tensor, depth: int) -> torch.Tensor:
        return x if depth == 0 else made[0](x + 1, depth - 1)

    made.append(runner(countdown))
    with made[0].capturing():
        made[0](rows(), 3)
    assert torch.equal(rows(seed=2) + 1 + 1 + 1, made[0](rows(seed=2), 3))
    assert {"captured": 1, "replayed": 1} == counts(made[0])


def test_calls_inside_a_graph_are_counted_at_every_replay() -> None:
    calls: dict[str, int] = {"site": 0, "break": 0}

    def add(more: Any) -> None:
        for name, number in more.items():
            calls[name] += number

    def between(x: torch.Tensor) -> torch.Tensor:
        calls["break"] += 1
        return x + 1

    def function(x: torch.Tensor) -> torch.Tensor:
        calls["site"] += 2
        return broken(x * 2) * 3

    graphed = runner(function, tally=CallTally(lambda: calls, add))
    broken = graphed.break_around(between, "between")
    with graphed.capturing():
        graphed(rows())
    calls.update(dict.fromkeys(calls, 0))
    graphed(rows())
    graphed(rows())
    assert {"site": 4, "break": 2} == calls


def test_threads_share_one_runner() -> None:
    graphed = captured(doubled, rows())
    wrong: list[int] = []

    def work(seed: int) -> None:
        with torch.no_grad():
            for index in range(50):
                x = rows(seed=1000 * seed + index)
                if not torch.equal(doubled(x), graphed(x)):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == wrong
    assert {"captured": 1, "replayed": 100} == counts(graphed)


def test_the_report_has_the_shape_of_a_dump() -> None:
    report = captured(doubled, rows()).report()
    assert {
        "captured": 1,
        "replayed": 0,
        "missed": 0,
        "rejected": 0,
        "unsupported": 0,
        "reason": None,
        "reasons": [],
        "function": "function",
        "graphs": 1,
        "segments": 1,
        "breaks": [],
        "pool_bytes": BYTES_A_SEGMENT,
    } == report
