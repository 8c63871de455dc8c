"""A request of the embedded model under the profiler: what is counted, what is not, and that nothing stays."""

from __future__ import annotations

import gzip
import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths.gates import Gate
from fuseproof.pipelines import session as session_module
from fuseproof.pipelines import session_warnings
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.divergence.following import StopHere
from fuseproof.pipelines.divergence.subject import Subject
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.profiling import profile_and_run
from fuseproof.pipelines.profiling.following import ProfilingFollower, Window
from fuseproof.pipelines.profiling.launches import Names
from fuseproof.pipelines.profiling.names import weights_of
from fuseproof.pipelines.profiling.profile import Seen, tables
from fuseproof.pipelines.profiling.request import window_of
from fuseproof.pipelines.profiling.trace_files import TraceKeeper, _bounded
from fuseproof.pipelines.profiling.watching import SiteWatch
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.session import Session, SessionSettings
from tests.fastpaths.fake_capture import FakeCapture
from tests.pipelines.short_prompts import with_short_prompts
from tests.pipelines.test_parity import BASE

CPU = torch.device("cpu")
REQUEST = replace(BASE, num_inference_steps=2)


@pytest.fixture(scope="module")
def pipe(tiny_longcat_folder: Path) -> Any:
    loaded = load_pipeline(check_checkpoint(tiny_longcat_folder), dtype=torch.float32, device=CPU)
    loaded.set_progress_bar_config(disable=True)
    return with_short_prompts(loaded)


def opened(pipe: Any, **settings: Any) -> Session:
    return Session(pipe, SessionSettings(**settings), CPU, torch.float32, SILENT)


@pytest.fixture(scope="module")
def profiled(pipe: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any, Any, Session]:
    """The profile and result of a request, the result of the same one unprofiled, and the session, closed."""
    with opened(pipe) as session:
        session.warm_up(REQUEST, 1)
        plain = session.run(REQUEST)
        trace = tmp_path_factory.mktemp("profile") / "trace.json.gz"
        found, result = profile_and_run(session, REQUEST, steps=1, trace_file=trace)
    found["trace"]["path"] = trace
    return found, result, plain, session


def test_a_profiled_request_makes_the_same_picture_and_is_no_measurement(profiled):
    found, result, plain, session = profiled
    np.testing.assert_array_equal(plain.image, result.image)
    assert session.is_profiled
    assert session_warnings.PROFILED in session.warnings
    assert ("fuseproof.profile/1", False) == (found["schema"], found["timed"])


def test_complete_steps_are_counted_and_each_launch_once(profiled):
    found = profiled[0]
    (stage,) = found["stages"]
    assert [("DenoisingStage", 1)] == [(step["stage"], step["index"]) for step in found["steps"]]
    assert ("DenoisingStage", 1, 2) == (stage["name"], stage["steps"], stage["steps_of_request"])
    for table in ("rows", "steps"):
        assert pytest.approx(stage["device_us"], abs=0.5) == sum(entry["device_us"] for entry in found[table])
    assert 0 < stage["device_us"] <= stage["wall_us"]
    assert {"transformer", "pipeline"} == {row["component"] for row in found["rows"]}
    json.dumps({**found, "trace": None}, allow_nan=False)


def test_what_the_profile_says_can_be_read(profiled, tmp_path):
    from fuseproof.harness.profiles.reading import read_profile

    found = {**profiled[0], "trace": {key: profiled[0]["trace"][key] for key in ("file", "bytes", "truncated")}}
    (tmp_path / "profile.json").write_text(json.dumps(found), encoding="utf-8")
    assert len(found["rows"]) == len(read_profile(tmp_path / "profile.json").rows)


def test_rewritten_blocks_are_attributed_to_their_site_and_block(profiled):
    found = profiled[0]
    assert 0.98 < found["attribution"]["to_site_or_module"]
    blocks = {row["module"] for row in found["rows"] if row["site"] == "packed_blocks" and row["class"] == "gemm"}
    assert {"transformer_blocks.0", "single_transformer_blocks.3"} <= blocks
    sites = {site["site"]: site for site in found["sites"]}
    assert "fused" == sites["packed_blocks"]["state"]
    assert {2} == {key["calls"] for key in sites["packed_blocks"]["keys"]}  # two guidance branches
    assert ("declined", None) == (sites["gelu_tanh"]["state"], sites["gelu_tanh"]["device_us"])
    assert any(chain["fast_path"] == "gelu_tanh" for chain in found["chains"])


def test_a_cpu_promises_no_savings_and_says_why(profiled):
    found = profiled[0]
    assert {(None, None)} == {
        (chain["fused_floor_us_per_step"], chain["saving_us_per_step"]) for chain in found["chains"]
    }
    assert "bound by their arithmetic" in found["device"]["no_saving_reason"]
    typical = [chain["typical_us_per_step"] for chain in found["chains"]]
    assert sorted(typical, reverse=True) == typical
    for row in found["rows"]:
        assert pytest.approx(row["device_us"]) == sum(row["device_us_by_step"])
        assert row["typical_us"] <= row["device_us"]
    assert 0 < found["disturbance"]["thread_cpu_share"] <= 1


def test_under_diffusers_own_pipeline_that_is_why_sites_are_off(pipe, tmp_path):
    with opened(pipe, fastpaths="off", backend="diffusers") as session:
        session.warm_up(REQUEST, 1)
        found = profile_and_run(session, REQUEST, steps=1, trace_file=tmp_path / "trace.json.gz")[0]
    assert {"--backend diffusers runs diffusers' own pipeline and mounts fast paths only with --fastpaths"} == {
        site["reason"] for site in found["sites"] if site["state"] == "off"
    }
    tables_chain = next(chain for chain in found["chains"] if "pos_embed" in chain["module"])
    assert "rotary_tables" == tables_chain["fast_path"]


def test_a_weight_tells_its_module_unless_several_share_it(pipe):
    weights = weights_of(Subject.of(pipe))
    linear = pipe.transformer.x_embedder
    assert ("transformer", "x_embedder", "Linear") == weights[linear.weight.untyped_storage().data_ptr()]
    shared = torch.nn.ModuleDict({"a": linear, "b": torch.nn.Linear(1, 1)})
    shared["b"].weight = linear.weight
    subject = replace(Subject.of(pipe), modules={"transformer.a": shared["a"], "transformer.b": shared["b"]})
    assert linear.weight.untyped_storage().data_ptr() not in weights_of(subject)


def test_the_trace_is_kept_and_marks_its_steps(profiled):
    trace = json.loads(gzip.decompress(profiled[0]["trace"]["path"].read_bytes()))
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"fuseproof.begins DenoisingStage 1", "fuseproof.ends DenoisingStage 1"} <= names
    assert not profiled[0]["trace"]["truncated"]


@pytest.mark.parametrize("name", ["plain", "a\nb", "\N{PANDA FACE}"])
def test_a_trace_is_kept_in_a_folder_of_any_name(name, tmp_path):
    folder = tmp_path / name
    traces = TraceKeeper(folder / "trace.json.gz")
    traces.keep(a_profiler(), "DenoisingStage")
    assert ([], ["trace.json.gz"]) == (traces.warnings, [path.name for path in folder.iterdir()])
    assert json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))["traceEvents"]


def test_a_trace_that_cannot_be_written_is_a_warning_and_leaves_nothing(tmp_path, capfd):
    """A limit on the size of files stands for a full disk: the profiler itself raises nothing at either."""
    traces, profiler = TraceKeeper(tmp_path / "trace.json.gz"), a_profiler()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        traces.keep(profiler, "DenoisingStage")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (warning,) = traces.warnings
    assert "the trace of DenoisingStage could not be written: " in warning
    assert (None, []) == (traces.to_json(), list(tmp_path.iterdir()))
    assert "output_json" not in capfd.readouterr().err


def test_an_interrupt_within_a_trace_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(_plain: Path, _path: Path) -> None:
        raise KeyboardInterrupt

    traces = TraceKeeper(tmp_path / "trace.json.gz")
    monkeypatch.setattr(traces, "_compress", interrupted)
    with pytest.raises(KeyboardInterrupt):
        traces.keep(a_profiler(), "DenoisingStage")
    assert [] == list(tmp_path.iterdir())


def a_profiler() -> torch.profiler.profile:
    with torch.profiler.profile(with_stack=True) as profiler:
        torch.ones(3) + 1
    return profiler


def test_nothing_stays_behind(profiled):
    assert all(not {"run", "decline", "run_eager"} & set(vars(gate)) for gate in profiled[3].mounted.gates.values())
    assert all(gate.call_observer is None for gate in profiled[3].mounted.gates.values())


def test_a_session_with_graphs_runs_one_step_without_replay_and_counts_none_of_it(pipe, monkeypatch, tmp_path):
    fake = FakeCapture()
    monkeypatch.setattr(session_module, "CudaCapture", lambda _device: fake)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: fake.is_recording)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: fake.is_recording)
    with opened(pipe, enable_breakable_cuda_graph=True) as session:
        found = profile_and_run(session, REQUEST, steps=1, trace_file=tmp_path / "trace.json.gz")[0]
        calls = session.fastpaths_report()["sites"]["packed_blocks"]["calls_fused"]
        assert calls == next(site["calls_fused"] for site in found["sites"] if site["site"] == "packed_blocks") > 0
        assert (4, 0) == (session.graphs_report()["replayed"], session.graphs_report()["missed"])
        after = session.run(REQUEST)
    assert 8 == session.graphs_report()["replayed"]
    assert [1] == [step["index"] for step in found["steps"]]
    assert 4 == after.work["transformer_calls"]


def test_an_error_in_the_request_leaves_no_profiler_running(pipe, monkeypatch, tmp_path):
    with opened(pipe, fastpaths="off") as session:
        session.warm_up(REQUEST, 1)
        calls = []

        def fail(*_args: Any, **_kwargs: Any) -> None:
            calls.append(1)
            if len(calls) == 3:
                raise FuseproofError("it broke.", next_step="Mend it.")

        handle = pipe.transformer.register_forward_hook(fail)
        try:
            with pytest.raises(FuseproofError, match="it broke"):
                profile_and_run(session, REQUEST, steps=1, trace_file=tmp_path / "trace.json.gz")[0]
        finally:
            handle.remove()
        assert not torch.autograd._profiler_enabled()


class Told:
    """An observer that notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def stage_started(self, name: str, total_steps: int | None) -> None:
        self.heard.append(name)

    def step_finished(self, step: int) -> None:
        self.heard.append(f"step {step}")

    def stage_finished(self, name: str, milliseconds: float) -> None:
        self.heard.append(f"end of {name}")


def clip_of_two_chunks(follower: ProfilingFollower) -> None:
    """Two chunks of two steps, each decoded; work lies between the steps' edges too."""
    x = torch.randn(4, 4)
    for _ in range(2):
        follower.stage_started("DenoisingStage", 2)
        for step in range(2):
            torch.sin(x)
            follower.step_finished(step)
        torch.exp(x)
        follower.stage_finished("DenoisingStage", 1.0)
        follower.stage_started("DecodingStage", None)
        torch.cos(x)
        follower.stage_finished("DecodingStage", 1.0)


@pytest.mark.parametrize("all_stages", [False, True], ids=["steps", "all stages"])
def test_a_clip_is_followed_chunk_by_chunk_and_what_lies_between_steps_is_in_none(all_stages):
    told = Told()
    follower = ProfilingFollower(Window(1, 2, all_stages=all_stages), CPU, SiteWatch({}), told)
    clip_of_two_chunks(follower)
    found = tables(
        Seen(tuple(follower.recordings)), Names(), {}, steps_of_request={}, bandwidth_gb_s=None, paths=[]
    )  # fmt: skip
    steps = [("DenoisingStage", 1), ("DenoisingStage", 2)]
    if all_stages:
        steps = [("DenoisingStage", 1), ("DecodingStage", 0), ("DenoisingStage", 2), ("DecodingStage", 1)]
    assert steps == [(step["stage"], step["index"]) for step in found["steps"]]
    assert [1] * len(steps) == [step["kernels"] for step in found["steps"]]
    assert {"aten::sin", "aten::cos"} if all_stages else {"aten::sin"} == {row["operation"] for row in found["rows"]}
    assert 4 == follower.steps_of_request
    assert ["DenoisingStage", "step 0", "step 1", "end of DenoisingStage", "DecodingStage"] == told.heard[:5]


def test_a_replay_ends_behind_its_step():
    follower = ProfilingFollower(Window(0, 1, ends_there=True), CPU, SiteWatch({}), SILENT)
    with pytest.raises(StopHere):
        clip_of_two_chunks(follower)
    assert 1 == len(follower.recordings)


@pytest.mark.parametrize(
    "whole, steps, first, count", [(50, 3, 1, 3), (4, 3, 1, 3), (3, 3, 0, 3), (1, 3, 0, 1)], ids=str
)
def test_the_first_step_is_left_out_where_others_suffice(whole, steps, first, count):
    window = window_of(whole, steps, all_stages=False)
    assert (first, count) == (window.first, window.count)


def test_a_gate_tells_its_calls_keys_and_tensors_and_is_as_before_afterwards():
    gate = Gate("double")
    watch = SiteWatch({"double": gate})
    x = torch.arange(16.0).reshape(2, 8)
    key = ("double", (x.shape, x.stride(), x.dtype, x.device, 0))
    with torch.no_grad(), watch.watching():
        gate.run(key, lambda: x * 2, lambda: x + x)
        watch.is_on = True
        gate.run(key, lambda: x * 2, lambda: x + x)
        gate.decline("too small", lambda: x)
    first, second = watch.take()
    assert ("fused", "double, 2x8 float32", "contiguous", True) == (first.state, first.key, first.layout, first.counts)
    assert [(2, 8)] == [use.shape for use in first.outputs]
    assert ("eager", "too small", False) == (second.state, second.key, second.counts)
    assert (2, 1) == (gate.calls_fused, gate.calls_eager)
    assert "run" not in vars(gate)
    assert gate.call_observer is None


@pytest.mark.parametrize("largest, kept", [(10**6, 5), (150, 2)], ids=["the first step", "without Python calls"])
def test_a_trace_that_is_too_large_loses_steps_first_and_python_calls_next(largest, kept):
    calls = [{"name": f"f{n}" * 99, "cat": "python_function", "ph": "X", "ts": n} for n in range(3)]
    ends = [{"name": f"fuseproof.ends DenoisingStage {n}", "ph": "X", "ts": 10 * (n + 1)} for n in range(3)]
    trace = {"traceEvents": [{"ph": "M", "name": "process"}, *calls, *ends]}
    bounded = json.loads(gzip.decompress(_bounded(trace, largest)))["traceEvents"]
    assert kept == len(bounded)
