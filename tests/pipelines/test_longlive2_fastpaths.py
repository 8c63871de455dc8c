"""LongLive 2's fast paths in a session: what the reports say, and a window that wraps; and two threads on one model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.sites.longlive2_transformer import forward
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.longlive2_steps import ChunkSteps, denoise
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.reference_longlive2 import generate_reference
from fuseproof.pipelines.session import Session, SessionSettings
from tests.pipelines.longlive2_parts import CPU, TEXT_TOKENS, clip, native, new_caches, small_longlive2
from tests.pipelines.test_longlive2_session import BASE
from tests.pipelines.test_parity_wan import IMAGE

SIX_CHUNKS = replace(BASE, num_frames=29 + 5 * 32, num_inference_steps=1)


@pytest.fixture(scope="module")
def pipe(tiny_longlive2_folder: Path) -> Any:
    return load_pipeline(check_checkpoint(tiny_longlive2_folder), dtype=torch.float32, device=CPU)


@pytest.mark.parametrize("request_of_clip", [SIX_CHUNKS, replace(BASE, image=IMAGE, width=64)], ids=["wraps", "image"])
def test_a_clip_with_fast_paths_is_the_references_and_the_report_says_what_ran(pipe: Any, request_of_clip: Any) -> None:
    results = []
    for settings in (SessionSettings(backend="reference"), SessionSettings(fastpaths="auto")):
        with Session(pipe, settings, CPU, torch.float32, SILENT) as session:
            results.append(session.run(request_of_clip))
            sites = session.fastpaths_report()["sites"]
    reference, mounted = results
    assert reference.image.tobytes() == mounted.image.tobytes()
    assert reference.latents.tobytes() == mounted.latents.tobytes()
    assert "fused" == sites["chunk_blocks"]["state"] == sites["packed_chunk_qkv"]["state"]
    assert {"declined"} == {sites[kernel]["state"] for kernel in ("gelu_tanh", "across_heads_norm_rope")}, "on a CPU"


@torch.no_grad()
def test_another_threads_clip_leaves_this_ones_memory_alone() -> None:
    transformer = small_longlive2(torch.float32)
    ours, theirs = clip(1, torch.float32), clip(1, torch.float32, seed=1)
    timestep, memory = torch.full((1, 8), 700.0), new_caches(transformer, ours)
    expected = native(transformer, theirs), transformer.forward_chunk(ours.noise, timestep, ours.text, memory, 0, False)
    found: list[torch.Tensor] = []
    with mount(SimpleNamespace(transformer=transformer)) as mounted:
        target = mounted.graph_target()
        assert target is not None
        memory.reset()
        prepared = target.owner.prepare(ours.noise, timestep, ours.text, memory, 0)
        thread = Thread(target=lambda: found.append(native(transformer, theirs)))
        thread.start()
        thread.join()
        found.append(target.owner.run_core(*prepared))
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_where_a_gate_only_observes_later_chunks_see_what_the_other_bits_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what eager would have left: a difference that is tolerated may grow from chunk to chunk, and must show it."""
    transformer, made_of, attend = small_longlive2(torch.float32), clip(2, torch.float32), forward.attend
    eager = native(transformer, made_of, num_inference_steps=1)

    def spoil_keys(attention: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if key.shape[1] > TEXT_TOKENS:
            key[:, -1] += 1
        return attend(attention, query, key, value)

    monkeypatch.setattr(forward, "attend", spoil_keys)
    found = []
    for gate in ("off", "observe"):
        with mount(SimpleNamespace(transformer=transformer), gate=gate):
            found.append([native(transformer, made_of, num_inference_steps=1) for _ in range(2)])
    (trusted, _), observed = found
    assert not torch.equal(eager, trusted)
    assert all(torch.equal(trusted, one) for one in observed)


def told_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every forward from here on: how many rows of modulation its blocks are told."""
    seen: list[int] = []
    made = forward.Step

    def noted(temb: torch.Tensor, projection: torch.Tensor, *others: Any) -> Any:
        seen.append(projection.shape[1])
        return made(temb, projection, *others)

    monkeypatch.setattr(forward, "Step", noted)
    return seen


@pytest.mark.parametrize(
    ("expected", "has_image", "is_announced"),
    [([1] * 5, False, True), ([8, 8, 1, 1, 1], True, True), ([8] * 5, False, False)],
    ids=["text", "image", "nothing announced"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_frames_told_alike_share_a_row_where_the_loop_says_so(
    monkeypatch: pytest.MonkeyPatch, expected: list[int], has_image: bool, is_announced: bool, dtype: torch.dtype
) -> None:
    transformer, made_of = small_longlive2(dtype), clip(2, dtype, has_image=has_image, batch=2)
    steps, caches = ChunkSteps(2, CPU, batch=2), new_caches(transformer, made_of)
    reference = generate_reference(transformer, made_of.noise, made_of.text, made_of.image, 2)
    seen = told_rows(monkeypatch)
    with mount(SimpleNamespace(transformer=transformer)) as mounted:
        if is_announced:
            mounted.announce_steps([*steps.timesteps, *steps.timesteps_behind_image, steps.clean])
        chunks = list(denoise(transformer, made_of.noise, made_of.text, made_of.image, steps, caches))
        assert "fused" == mounted.report()["sites"]["chunk_blocks"]["state"]
    assert torch.equal(reference, torch.cat(chunks, dim=2))
    assert expected == seen


@torch.no_grad()
def test_frames_keep_their_rows_where_equal_timesteps_have_other_bits_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    transformer, made_of = small_longlive2(torch.float32), clip(1, torch.float32)
    told = transformer.modulation_rows

    def uneven(timestep: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        temb, modulation = told(timestep, dtype)
        modulation[:, -1] += 1e-3
        return temb, modulation

    monkeypatch.setattr(type(transformer), "modulation_rows", lambda _self, *arguments: uneven(*arguments))
    steps, caches = ChunkSteps(1, CPU), new_caches(transformer, made_of)
    eager = native(transformer, made_of, num_inference_steps=1)
    seen = told_rows(monkeypatch)
    with mount(SimpleNamespace(transformer=transformer)) as mounted:
        mounted.announce_steps(steps.timesteps)
        (found,) = denoise(transformer, made_of.noise, made_of.text, None, steps, caches)
        assert "fused" == mounted.report()["sites"]["chunk_blocks"]["state"]
    assert torch.equal(eager, found)
    assert [8] == seen


@torch.no_grad()
def test_a_timestep_that_was_written_to_since_is_no_longer_the_announced_one(monkeypatch: pytest.MonkeyPatch) -> None:
    transformer, made_of = small_longlive2(torch.float32), clip(1, torch.float32)
    timestep = torch.full((1, 8), 700.0)
    seen = told_rows(monkeypatch)
    with mount(SimpleNamespace(transformer=transformer)) as mounted:
        mounted.announce_steps([timestep])
        for _ in range(2):
            caches = new_caches(transformer, made_of)
            found = transformer.forward_chunk(made_of.noise, timestep, made_of.text, caches, 0, write=False)
            timestep[:, 0] = 0
    timestep[:, 0] = 0
    caches = new_caches(transformer, made_of)
    assert torch.equal(transformer.forward_chunk(made_of.noise, timestep, made_of.text, caches, 0, write=False), found)
    assert [1, 8] == seen


@torch.no_grad()
def test_a_hook_on_the_last_norm_is_heard_where_frames_share_a_row() -> None:
    transformer, made_of = small_longlive2(torch.float32), clip(1, torch.float32)
    steps, caches = ChunkSteps(1, CPU), new_caches(transformer, made_of)
    plain = native(transformer, made_of, num_inference_steps=1)
    hook = transformer.norm_out.register_forward_hook(lambda _module, _inputs, output: output * 1.5)
    hooked = native(transformer, made_of, num_inference_steps=1)
    with mount(SimpleNamespace(transformer=transformer)) as mounted:
        mounted.announce_steps(steps.timesteps)
        (found,) = denoise(transformer, made_of.noise, made_of.text, None, steps, caches)
        assert "fused" == mounted.report()["sites"]["chunk_blocks"]["state"]
    hook.remove()
    assert torch.equal(hooked, found)
    assert not torch.equal(plain, found)
