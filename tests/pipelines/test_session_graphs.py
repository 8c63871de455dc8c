"""A session whose graphs are recorded and replayed on the CPU: same bits, every call replayed, everything undone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fuseproof.errors import UsageError
from fuseproof.harness.perf.graphs import graph_shortfall
from fuseproof.pipelines import session as session_module
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.embedded import ResolvedModel
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.session import GenerationResult, Session, SessionSettings
from tests.fastpaths.fake_capture import FakeCapture
from tests.pipelines.short_prompts import with_short_prompts
from tests.pipelines.test_parity import BASE

CPU = torch.device("cpu")
STEPS = BASE.num_inference_steps
ARMS = {
    "fast paths off": {"fastpaths": "off"},
    "fast paths auto": {"fastpaths": "auto"},
    "held results only": {"fastpaths": "context_embedding,rotary_tables,timestep_embedding,modulation"},
    "diffusers": {"backend": "diffusers"},
}


@pytest.fixture(scope="module")
def pipe(tiny_longcat_folder: Path) -> Any:
    loaded = load_pipeline(check_checkpoint(tiny_longcat_folder), dtype=torch.float32, device=CPU)
    loaded.set_progress_bar_config(disable=True)
    return with_short_prompts(loaded)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> FakeCapture:
    """The session captures on the fake, and gates hear of it as they would hear of CUDA's capture."""
    fake = FakeCapture()
    monkeypatch.setattr(session_module, "CudaCapture", lambda _device: fake)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: fake.is_recording)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: fake.is_recording)
    return fake


def opened(pipe: Any, **settings: Any) -> Session:
    return Session(pipe, SessionSettings(**settings), CPU, torch.float32, SILENT)


def shortfall(session: Session, *results: GenerationResult) -> str | None:
    asked = {"enable_breakable_cuda_graph": True}
    return graph_shortfall(asked, session.graphs_report(), [{"work": result.work} for result in results])


@pytest.mark.parametrize("settings", [pytest.param(settings, id=name) for name, settings in ARMS.items()])
def test_graphs_keep_every_bit_and_answer_every_timed_call(pipe: Any, settings: dict[str, str]) -> None:
    requests = (BASE, replace(BASE, seed=7, prompt="a blue door"))
    with opened(pipe, **settings) as plain:
        plain.warm_up(BASE, 1)
        expected = [plain.run(request) for request in requests]
        sites = plain.fastpaths_report()["sites"]
    with opened(pipe, enable_breakable_cuda_graph=True, **settings) as session:
        session.warm_up(BASE, 1)
        results = [session.run(request) for request in requests]
        assert None is shortfall(session, *results)
        report = session.graphs_report()
        graphed_sites = session.fastpaths_report()["sites"]
    assert [one.image.tobytes() for one in expected] == [one.image.tobytes() for one in results]
    assert [one.work for one in expected] == [one.work for one in results], "a replay is the same batch x tokens"
    assert (1, 2 * 2 * STEPS, 0, 0) == tuple(report[name] for name in ("captured", "replayed", "missed", "rejected"))
    if settings.get("fastpaths") == "auto":
        assert {name: site["calls_fused"] for name, site in sites.items()} == {
            name: site["calls_fused"] for name, site in graphed_sites.items()
        }


def test_another_size_is_missed_with_a_reason(pipe: Any) -> None:
    wide = replace(BASE, width=96)
    with opened(pipe, fastpaths="off") as plain:
        expected = plain.run(wide)
    with opened(pipe, fastpaths="off", enable_breakable_cuda_graph=True) as session:
        session.warm_up(BASE, 1)
        result = session.run(wide)
        assert "hidden_states shape captured (1, 16, 64), asked (1, 24, 64)" in str(shortfall(session, result))
    assert expected.image.tobytes() == result.image.tobytes()


def test_warming_up_more_sizes_captures_more(pipe: Any) -> None:
    wide = replace(BASE, width=96)
    with opened(pipe, enable_breakable_cuda_graph=True) as session:
        for request in (BASE, wide):
            session.warm_up(request, 1)
        results = [session.run(request) for request in (wide, BASE)]
        assert None is shortfall(session, *results)
        assert 2 == session.graphs_report()["captured"]


def test_qualities_that_take_turns_never_share_a_graph(pipe: Any) -> None:
    requests = [replace(BASE, quality=quality) for quality in ("high", "lossless", "high", "lossless")]
    with opened(pipe, quality="high") as plain:
        expected = [plain.run(request) for request in requests]
    with opened(pipe, quality="high", enable_breakable_cuda_graph=True) as session:
        for request in requests[:2]:
            session.warm_up(request, 1)
        results = [session.run(request) for request in requests]
        assert None is shortfall(session, *results)
        assert 2 == session.graphs_report()["captured"]
    assert [one.image.tobytes() for one in expected] == [one.image.tobytes() for one in results]


def test_closing_leaves_the_model_as_it_was(pipe: Any) -> None:
    session = opened(pipe, enable_breakable_cuda_graph=True)
    session.warm_up(BASE, 1)
    session.close()
    session.close()
    assert not [name for name, module in pipe.transformer.named_modules() if "forward" in vars(module)]
    assert 0 == session.graphs_report()["graphs"]


def test_moved_weights_are_never_read_stale(pipe: Any) -> None:
    weight = pipe.transformer.transformer_blocks[0].ff.net[2].weight
    original = weight.data
    try:
        for settings in ({"fastpaths": "off"}, {"fastpaths": "auto"}):
            weight.data = original
            with opened(pipe, enable_breakable_cuda_graph=True, **settings) as session:
                session.warm_up(BASE, 1)
                session.run(BASE)
                weight.data = original * 1.5
                moved = session.run(BASE)
                assert shortfall(session, moved, moved) is not None
            with opened(pipe, backend="diffusers") as reference:
                assert reference.run(BASE).image.tobytes() == moved.image.tobytes()
    finally:
        weight.data = original


def test_without_graphs_the_report_says_so(pipe: Any) -> None:
    with opened(pipe) as session:
        assert {"captured": 0, "replayed": 0, "reason": "not asked for"} == {
            name: session.graphs_report()[name] for name in ("captured", "replayed", "reason")
        }


def test_a_cpu_is_refused_before_anything_is_loaded(tiny_longcat_model: ResolvedModel) -> None:
    settings = SessionSettings(device="cpu", enable_breakable_cuda_graph=True)
    with pytest.raises(UsageError, match="needs a CUDA device, and this session runs on cpu") as caught:
        Session.open(tiny_longcat_model, None, settings)  # type: ignore[arg-type]
    assert caught.value.next_step
