"""The rewritten blocks of LongLive 2 on a small model: the reference's bits, graphs by place, reasons to decline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.interpreter_rounding import exact_rounding
from fuseproof.fastpaths.kernels import across_heads_norm_rope, table_layernorm_modulate
from fuseproof.fastpaths.kernels.launching import is_interpreted
from fuseproof.fastpaths.sites import longlive2_transformer
from fuseproof.fastpaths.sites.longlive2_transformer import forward
from fuseproof.pipelines.graphs import TransformerGraphs
from fuseproof.pipelines.longlive2_model import LongLive2Transformer3DModel
from fuseproof.pipelines.reference_longlive2 import generate_reference
from tests.fastpaths.fake_capture import FakeCapture
from tests.pipelines.longlive2_parts import Clip, clip, native, new_caches, small_longlive2

WRAPPED = 6


@pytest.fixture
def pipe() -> Any:
    return SimpleNamespace(transformer=small_longlive2(torch.float32))


def reference(pipe: Any, made_of: Clip, steps: int = 1) -> torch.Tensor:
    return generate_reference(pipe.transformer, made_of.noise, made_of.text, made_of.image, steps)


def state_of(mounted: Any, site: str = "chunk_blocks") -> Any:
    return mounted.report()["sites"][site]


@pytest.mark.parametrize("has_image", [False, True], ids=["text", "image"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_clip_has_the_bits_of_the_reference_and_every_block_is_verified(dtype: torch.dtype, has_image: bool) -> None:
    pipe, made_of = SimpleNamespace(transformer=small_longlive2(dtype)), clip(3, dtype, has_image=has_image)
    expected = reference(pipe, made_of, 2)
    with mount(pipe) as mounted:
        assert torch.equal(expected, native(pipe.transformer, made_of, num_inference_steps=2))
    passes = 3 + 3 + 2  # two steps and a pass over clean latents each, but for the last chunk
    assert ("fused", 2 * passes) == (state_of(mounted)["state"], state_of(mounted)["calls_fused"])
    assert torch.equal(expected, native(pipe.transformer, made_of, num_inference_steps=2))


def test_the_window_wraps_as_it_does_in_the_reference(pipe: Any) -> None:
    made_of = clip(WRAPPED, torch.float32)
    expected = reference(pipe, made_of)
    with mount(pipe) as mounted:
        assert torch.equal(expected, native(pipe.transformer, made_of, num_inference_steps=1))
    assert 2 * 11 == state_of(mounted)["calls_fused"]


def test_one_graph_a_place_serves_the_next_clip(pipe: Any) -> None:
    transformer, first, second = pipe.transformer, clip(WRAPPED, torch.float32), clip(WRAPPED, torch.float32, seed=1)
    caches = new_caches(transformer, first)
    expected = [reference(pipe, made_of, 2) for made_of in (first, second)]
    with mount(pipe) as mounted:
        graphs = TransformerGraphs(transformer, mounted, FakeCapture())  # type: ignore[arg-type]
        with graphs.capturing():
            assert torch.equal(expected[0], native(transformer, first, caches, 2))
        mounted.end_request()
        graphs.restart_counting()
        assert torch.equal(expected[1], native(transformer, second, caches, 2))
        report = graphs.report()
        graphs.close()
    assert (4, 17, 0, 0) == tuple(report[key] for key in ("graphs", "replayed", "missed", "rejected"))


def test_other_memory_is_another_graph(pipe: Any) -> None:
    transformer, made_of = pipe.transformer, clip(1, torch.float32)
    with mount(pipe) as mounted:
        graphs = TransformerGraphs(transformer, mounted, FakeCapture())  # type: ignore[arg-type]
        with graphs.capturing():
            native(transformer, made_of, new_caches(transformer, made_of), 1)
        graphs.restart_counting()
        elsewhere = new_caches(transformer, made_of)
        assert torch.equal(reference(pipe, made_of), native(transformer, made_of, elsewhere, 1))
        report = graphs.report()
        graphs.close()
    assert (0, 1) == (report["replayed"], report["missed"])


def test_keys_that_a_wrong_block_leaves_are_seen_at_once(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made_of, attend = clip(2, torch.float32), forward.attend

    def spoil_keys(attention: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        attended = attend(attention, query, key, value)
        if key.shape[1] > 5:  # not the text's
            key[:, -1, 0, 0] += 1
        return attended

    expected = reference(pipe, made_of)
    monkeypatch.setattr(forward, "attend", spoil_keys)
    with mount(pipe) as mounted:
        assert torch.equal(expected, native(pipe.transformer, made_of, num_inference_steps=1))
    assert "rejected" == state_of(mounted)["state"]
    assert "not bit-exact" in state_of(mounted)["reason"]


class Other(LongLive2Transformer3DModel):
    """Somebody's own."""


def test_what_is_not_plain_declines_with_a_reason(pipe: Any) -> None:
    made_of = clip(1, torch.float32)
    pipe.transformer.blocks[1].ffn.register_forward_hook(lambda *_: None)
    with mount(pipe) as mounted:
        native(pipe.transformer, made_of, num_inference_steps=1)
    assert "declined" == state_of(mounted)["state"]
    assert "blocks.1.ffn" in state_of(mounted)["reason"]
    pipe.transformer.__class__ = Other
    assert "the sites need fuseproof's own LongLive2Transformer3DModel" in str(
        longlive2_transformer.reject_reason(pipe.transformer)
    )


def test_gradients_decline(pipe: Any) -> None:
    made_of = clip(1, torch.float32)
    caches = new_caches(pipe.transformer, made_of)
    pipe.transformer.requires_grad_(False)
    with mount(pipe) as mounted, torch.enable_grad():
        pipe.transformer.forward_chunk(made_of.noise, torch.zeros(1, 8), made_of.text, caches, 0, write=True)
    assert {"gradients are recorded; call the pipeline under torch.no_grad()": 1} == mounted.gates[
        "chunk_blocks"
    ].declined


@pytest.fixture
def kernels_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_interpreted():
        pytest.skip("kernels are compiled here, not interpreted")
    monkeypatch.setattr(longlive2_transformer, "site_reasons", lambda transformer: {})


FRAMES = 2
"""Of a chunk, one token each: the interpreter takes milliseconds a row."""


def one_block() -> Any:
    transformer = small_longlive2(torch.bfloat16)
    del transformer.blocks[1]
    return SimpleNamespace(transformer=transformer)


@torch.no_grad()
def two_chunks(pipe: Any) -> list[torch.Tensor]:
    """The velocities of two short chunks, the second of which sees the first."""
    made_of, told = clip(1, torch.bfloat16), torch.tensor([[0.0, 833.0]])
    noise = made_of.noise[..., :2, :2].bfloat16()
    caches = pipe.transformer.new_caches(1, 2, 2, noise.device, torch.bfloat16, 2 * FRAMES)
    return [
        pipe.transformer.forward_chunk(
            noise[:, :, start : start + FRAMES].contiguous(), told, made_of.text, caches, start, write=True
        )
        for start in (0, FRAMES)
    ]


@pytest.mark.usefixtures("kernels_on_a_cpu")
def test_the_kernels_keep_every_bit_in_the_interpreter() -> None:
    pipe = one_block()
    with exact_rounding():
        expected = two_chunks(pipe)
        with mount(pipe) as mounted:
            assert all(map(torch.equal, expected, two_chunks(pipe)))
    for site in longlive2_transformer.KERNELS_OF_SITE:
        assert state_of(mounted, site)["calls_fused"] or state_of(mounted, site)["reason"], site
    assert 0 < state_of(mounted, "table_gated_residual")["calls_fused"]


@pytest.mark.usefixtures("kernels_on_a_cpu")
@pytest.mark.parametrize(
    ("kernel", "site"),
    [(table_layernorm_modulate, "table_layernorm_modulate"), (across_heads_norm_rope, "across_heads_norm_rope")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_kernel_is_rejected_and_the_chunks_stay_exact(
    monkeypatch: pytest.MonkeyPatch, kernel: Any, site: str
) -> None:
    pipe, right = one_block(), kernel.fused

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        (result[0] if isinstance(result, tuple) else result).view(torch.int16).flatten()[0] ^= 1
        return result

    monkeypatch.setattr(kernel, "fused", wrong)
    with exact_rounding():
        expected = two_chunks(pipe)
        with mount(pipe) as mounted:
            assert all(map(torch.equal, expected, two_chunks(pipe)))
    assert "rejected" == state_of(mounted, site)["state"]
