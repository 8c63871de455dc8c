"""Launches of CUDA graph replays, attributed by a step that ran without them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fuseproof.pipelines.profiling import events
from fuseproof.pipelines.profiling.events import Call
from fuseproof.pipelines.profiling.graph_alignment import align
from fuseproof.pipelines.profiling.joining import join
from fuseproof.pipelines.profiling.launches import TRANSFORMER, Launch, Names
from fuseproof.pipelines.profiling.profile import Seen, tables
from tests.pipelines.profiling import event_lists as given
from tests.pipelines.profiling.event_lists import kernel, on_device, python, runtime

STEPS = [(0, 100), (100, 200)]


def replayed(names: Iterable[str], graph: int) -> list[Launch]:
    return [Launch(name, "other", graph, graph + 1 + n, 10, graph=graph) for n, name in enumerate(names)]


def eager(names: Iterable[str], mark: str = "fuseproof.graphed 1") -> list[Launch]:
    return [
        Launch(name, "norm", n, n, 3, component=TRANSFORMER, module=f"block.{n}", mark=mark, operation="aten::norm")
        for n, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    "names, reference, modules",
    [
        ("abc", "abc", ["block.0", "block.1", "block.2"]),
        ("abc", "axxbc", ["block.0", "block.3", "block.4"]),
        ("abyc", "abc", ["block.0", "block.1", None, "block.2"]),
        ("yy", "abc", [None, None]),
        ("aa", "", [None, None]),
    ],
    ids=["as captured", "more in the eager step", "more in the replay", "nothing alike", "no eager step"],
)
def test_what_aligns_is_attributed_and_the_rest_is_said(names, reference, modules):
    found = align(replayed(names, 5), STEPS, eager(reference))
    assert modules == [one.module for one in found.launches]
    assert [10] * len(names) == [one.nanoseconds for one in found.launches]
    assert modules.count(None) == found.unmatched
    assert (found.warning is None) is (found.unmatched == 0)
    assert all(one.from_graph for one in found.launches)


def test_memsets_and_copies_go_by_their_kind_for_a_graph_names_its_own_otherwise():
    reference = eager(["Memset (Device)", "a", "Memcpy DtoD (Device -> Device)"])
    found = align(replayed(["Memset (Unknown)", "a", "memcpy128"], 5), STEPS, reference)
    assert ["block.0", "block.1", "block.2"] == [one.module for one in found.launches]
    assert found.warning is None


def test_the_warning_says_how_much_time_is_not_attributed():
    found = align(replayed("abyc", 5), STEPS, eager("abc"))
    assert found.warning.startswith("1 of 4 launches of CUDA graph replays (0.000 ms) do not align")


def test_each_forward_of_a_step_has_its_own_counterpart():
    reference = [*eager("ab", "fuseproof.graphed 1"), *[
        Launch(name, "norm", 50 + n, 50 + n, 3, module=f"second.{n}", mark="fuseproof.graphed 50")
        for n, name in enumerate("ab")
    ]]  # fmt: skip
    launches = [*replayed("ab", 5), *replayed("ab", 30), *replayed("ab", 105), *replayed("ab", 130)]
    expected = ["block.0", "block.1", "second.0", "second.1"] * 2
    assert expected == [one.module for one in align(launches, STEPS, reference).launches]


def test_segments_between_eager_calls_are_one_replay_of_the_runner():
    runner = python("__call__", 1, 90, "fuseproof/fastpaths/graphs.py", 90)
    calls = [
        Call(events.PYTHON, "forward", 0, 95, 1, given.MODEL, 10), runner, runtime(1, 10, "cudaGraphLaunch"),
        given.operation("aten::mul", 20, 25), runtime(2, 21), runtime(3, 30, "cudaGraphLaunch"),
    ]  # fmt: skip
    work = [kernel(1, 40, 41, "a"), kernel(1, 42, 43, "b"), kernel(2, 44, 45, "own"), kernel(3, 46, 47, "c")]
    launches = join(on_device(calls, work), Names())
    found = align(launches, STEPS, eager("abxc")).launches
    assert [("a", "block.0"), ("b", "block.1"), ("own", None), ("c", "block.3")] == [
        (one.kernel, one.module) for one in found
    ]


def test_on_an_h200_a_replay_is_told_by_the_eager_step_kernel_by_kernel():
    replay, _ = given.recorded("longcat_graph")
    without, names = given.recorded("longcat_fused")
    found = tables(Seen((replay,), without), names, {}, steps_of_request={}, bandwidth_gb_s=None, paths=[])
    assert [] == found["warnings"]
    assert (42, 1) == (found["steps"][0]["kernels"], found["steps"][0]["graph_launches"])
    graphed = [row for row in found["rows"] if row["from_graph"]]
    assert 41 == sum(row["calls"] for row in graphed)
    assert {"transformer_blocks.0", "single_transformer_blocks.0", "single_transformer_blocks.1", "proj_out", ""} == {
        row["module"] for row in graphed
    }
    assert 0.98 < found["attribution"]["to_module"]
    (gelu,) = (row for row in graphed if row["kernel"] == "_gelu_tanh_kernel")
    assert ("gelu_tanh", "kernels/gelu_tanh.py:128", "fused") == (gelu["site"], gelu["line"], gelu["site_state"])


def test_on_an_h200_a_replay_without_an_eager_step_is_attributed_to_nothing():
    replay, names = given.recorded("longcat_graph")
    found = tables(Seen((replay,)), names, {}, steps_of_request={}, bandwidth_gb_s=None, paths=[])
    assert 0.001 > found["attribution"]["to_site_or_module"]  # the copy into the graph has a line of its own
    assert 2 == len(found["warnings"])
    assert found["attribution"]["unattributed"][0]["kernel"].startswith("nvjet")
