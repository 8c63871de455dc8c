"""On the card: a few blocks of LongLive 2 at their real width, a clip mounted against eager, and with CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.graph_device import CudaCapture
from fuseproof.fastpaths.sites import longlive2_transformer
from fuseproof.pipelines import dummy_wan
from fuseproof.pipelines.dummy_geometry import LONGLIVE2
from fuseproof.pipelines.dummy_weights import materialise
from fuseproof.pipelines.graphs import TransformerGraphs
from fuseproof.pipelines.longlive2_model import as_longlive2
from fuseproof.pipelines.longlive2_steps import ChunkSteps, denoise, draw_noise
from fuseproof.pipelines.reference_longlive2 import generate_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EXACT = ("chunk_blocks", *longlive2_transformer.KERNELS_OF_SITE)
HEIGHT, WIDTH, CHUNKS = 30, 52, 5
"""Latents of 832x480 pixels; the fifth chunk is the first before which frames leave the window."""
DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
STEPS = 2


@pytest.fixture(scope="module")
def pipe() -> Any:
    with torch.device("meta"):
        model = as_longlive2(WanTransformer3DModel(**{**LONGLIVE2.transformer, "num_layers": 2}).eval())
    gain = dummy_wan.GAINS["transformer"]
    materialise(model, "transformer", dtype=DTYPE, device=DEVICE, seed=0, gain=gain)
    dummy_wan.point_velocity_along_latents(model)
    return SimpleNamespace(transformer=model.requires_grad_(False))


@pytest.fixture
def caches(pipe: Any) -> Iterator[Any]:
    yield pipe.transformer.new_caches(1, HEIGHT, WIDTH, DEVICE, DTYPE, 8 * CHUNKS)
    torch.cuda.empty_cache()


def inputs(kind: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    noise = draw_noise((1, 48, 8 * CHUNKS, HEIGHT, WIDTH), generator, DEVICE)
    text = torch.randn(1, 512, 4096, device=DEVICE, generator=generator).to(DTYPE)
    image = torch.randn(1, 48, 1, HEIGHT, WIDTH, device=DEVICE, generator=generator)
    return noise, text, image if kind == "image" else None


def clip(pipe: Any, made_of: tuple[Any, ...], caches: Any, mounted: Any = None) -> torch.Tensor:
    """The clip's latents; a loop that announces its steps where something is ``mounted``."""
    steps = ChunkSteps(STEPS, DEVICE)
    if mounted is not None:
        mounted.announce_steps([*steps.timesteps, *steps.timesteps_behind_image, steps.clean])
    return torch.cat(list(denoise(pipe.transformer, *made_of, steps, caches)), dim=2)


@pytest.mark.parametrize("kind", ["text", "image"])
@torch.no_grad()
def test_every_bit_of_a_clip_is_the_references_and_every_kernel_runs(pipe: Any, caches: Any, kind: str) -> None:
    made_of = inputs(kind)
    expected = generate_reference(pipe.transformer, *made_of, STEPS)
    assert torch.equal(expected, clip(pipe, made_of, caches))
    with mount(pipe) as mounted:
        for _ in range(2):
            assert torch.equal(expected, clip(pipe, made_of, caches, mounted))
            assert torch.equal(expected, clip(pipe, made_of, caches))
            mounted.end_request()
        states = {site: mounted.report()["sites"][site] for site in EXACT}
    assert dict.fromkeys(EXACT, "fused") == {site: state["state"] for site, state in states.items()}, states


@torch.no_grad()
def test_a_graph_for_each_place_replays_every_forward_of_another_clip(pipe: Any, caches: Any) -> None:
    first, second = inputs("text"), inputs("text", seed=1)
    expected = [generate_reference(pipe.transformer, *made_of, STEPS) for made_of in (first, second)]
    with mount(pipe) as mounted:
        graphs = TransformerGraphs(pipe.transformer, mounted, CudaCapture(DEVICE))
        try:
            with graphs.capturing():
                assert torch.equal(expected[0], clip(pipe, first, caches, mounted))
            graphs.restart_counting()
            assert torch.equal(expected[1], clip(pipe, second, caches, mounted))
            report = graphs.report()
        finally:
            graphs.close()
    forwards = CHUNKS * STEPS + CHUNKS - 1
    assert (4, forwards, 0, 0) == tuple(report[name] for name in ("graphs", "replayed", "missed", "rejected")), report


@torch.no_grad()
def test_a_verified_forward_waits_for_nothing(pipe: Any, caches: Any) -> None:
    noise, text, _ = inputs("text")
    steps, latents = ChunkSteps(STEPS, DEVICE), noise[:, :, :8].to(DTYPE)

    def chunk() -> None:
        caches.reset()
        for timestep in steps.timesteps:
            pipe.transformer.forward_chunk(latents, timestep, text, caches, 0, write=False)
        pipe.transformer.forward_chunk(latents, steps.clean, text, caches, 0, write=True)

    with mount(pipe) as mounted:
        mounted.announce_steps([*steps.timesteps, steps.clean])
        chunk()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            chunk()
        finally:
            torch.cuda.set_sync_debug_mode("default")
