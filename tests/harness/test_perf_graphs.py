"""When the graphs of a dump fall short of what was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from fuseproof.harness.perf.graphs import graph_shortfall

GOOD: dict[str, Any] = {"captured": 1, "replayed": 100, "missed": 0, "rejected": 0, "unsupported": 0, "reason": None}
CALLS = [{"work": {"transformer_calls": 50}}, {"work": {"transformer_calls": 50}}]


@pytest.mark.parametrize(
    ("expected", "graphs", "requests"),
    [
        pytest.param(None, GOOD, CALLS, id="every call replayed"),
        pytest.param(None, GOOD, [], id="no work recorded"),
        pytest.param(None, {**GOOD, "rejected": 1, "reason": "rejected: x"}, CALLS, id="a capture nobody needed"),
        pytest.param(None, {**GOOD, "replayed": 200}, CALLS, id="more graphs than transformer calls"),
        pytest.param("captured none (no reason recorded)", {}, CALLS, id="nothing recorded"),
        pytest.param(
            "captured none (rejected: OutOfMemoryError)",
            {**GOOD, "captured": 0, "replayed": 0, "missed": 100, "reason": "rejected: OutOfMemoryError"},
            CALLS,
            id="none captured",
        ),
        pytest.param("replayed none (no reason recorded)", {**GOOD, "replayed": 0}, CALLS, id="none replayed"),
        pytest.param(
            "2 call(s) missed and 1 call(s) unsupported beside 97 replayed (why)",
            {**GOOD, "replayed": 97, "missed": 2, "unsupported": 1, "reason": "why"},
            CALLS,
            id="missed and unsupported",
        ),
        pytest.param(
            "replayed only 99 of 100 transformer calls (no reason recorded)",
            {**GOOD, "replayed": 99},
            CALLS,
            id="calls that went around the graph",
        ),
        pytest.param("captured none (no reason recorded)", {**GOOD, "captured": "many"}, CALLS, id="not a number"),
        pytest.param(None, GOOD, [{"work": None}, {}], id="work of another shape"),
    ],
)
def test_graph_shortfall(expected: str | None, graphs: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    assert expected == graph_shortfall({"enable_breakable_cuda_graph": True}, graphs, requests)


@pytest.mark.parametrize("config", [{}, {"enable_breakable_cuda_graph": False}], ids=["no flag", "flag off"])
def test_nothing_is_missing_where_nothing_was_asked_for(config: dict[str, Any]) -> None:
    assert None is graph_shortfall(config, {}, CALLS)
