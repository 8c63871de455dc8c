"""``generate --enable-breakable-cuda-graph``: what is warmed up, and a run that did not get its graphs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.desk import SMALL, Desk

GRAPHS = ("--enable-breakable-cuda-graph", "--device=cuda")
REPLAYED: dict[str, Any] = {
    "captured": 1,
    "replayed": 2,
    "missed": 0,
    "rejected": 0,
    "unsupported": 0,
    "reason": None,
    "pool_bytes": 4096,
}


def test_graphs_reach_the_session_and_turn_a_warmup_on(desk: Desk) -> None:
    desk.session.graphs = REPLAYED
    assert 0 == desk.run("--prompt=a", *SMALL, *GRAPHS, "--perf-dump-path=p.json"), desk.err
    assert desk.session.opened_with.enable_breakable_cuda_graph is True
    assert [(64, 48, 1)] == [(request.width, request.height, steps) for request, steps in desk.session.warmups]
    dump = desk.dump()
    assert (REPLAYED, True, "request") == (
        dump["graphs"],
        dump["config"]["enable_breakable_cuda_graph"],
        dump["config"]["warmup_mode"],
    )
    assert "CUDA graphs: 1 captured, 2 replayed, 0 missed, 0 unsupported" == desk.out.splitlines()[-1]
    assert "" == desk.err


def test_warmup_resolutions_capture_more_than_the_requests_own_size(desk: Desk) -> None:
    desk.session.graphs = REPLAYED
    sizes = "--warmup-resolutions=128x64,64x48"
    assert 0 == desk.run("--prompt=a", *SMALL, *GRAPHS, sizes), desk.err
    assert [(64, 48), (128, 64)] == [(request.width, request.height) for request, _ in desk.session.warmups]


@pytest.mark.parametrize(
    ("graphs", "said"),
    [
        pytest.param({**REPLAYED, "captured": 0, "replayed": 0, "missed": 2}, "captured none", id="none captured"),
        pytest.param({**REPLAYED, "replayed": 0, "missed": 2, "reason": "missed: x shape"}, "x shape", id="missed"),
        pytest.param({**REPLAYED, "replayed": 1}, "replayed only 1 of 2 transformer calls", id="one went around"),
        pytest.param({**REPLAYED, "unsupported": 1, "reason": "why not"}, "why not", id="unsupported"),
    ],
)
def test_graphs_that_were_asked_for_and_missing_are_invalid(desk: Desk, graphs: dict[str, Any], said: str) -> None:
    desk.session.graphs = graphs
    assert 6 == desk.run("--prompt=a", *SMALL, *GRAPHS, "--perf-dump-path=p.json")
    assert "fuseproof: error: CUDA graphs were asked for: " in desk.err
    assert said in desk.err.split("error: ")[1]
    assert "  next: " in desk.err
    dump = desk.dump()
    assert graphs == dump["graphs"]
    assert "this measurement is invalid: CUDA graphs were asked for: " in dump["warnings"][-1]
    assert 1 == desk.out.count("Output saved to ") == desk.out.count("raw sha256 ")


def test_counters_without_the_flag_mean_nothing(desk: Desk) -> None:
    assert 0 == desk.run("--prompt=a", *SMALL)
    assert "CUDA graphs" not in desk.out
