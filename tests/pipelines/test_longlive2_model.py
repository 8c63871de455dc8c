"""LongLive 2's causal transformer and its loop: the reference's bits, Wan's own arithmetic under a mask, and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanAttnProcessor

from fuseproof.pipelines import longlive2_steps
from fuseproof.pipelines.longlive2_caches import LongLive2Caches
from fuseproof.pipelines.longlive2_model import LongLive2Transformer3DModel, as_longlive2
from fuseproof.pipelines.longlive2_steps import ChunkSteps, denoise
from fuseproof.pipelines.reference_longlive2 import generate_reference
from fuseproof.pipelines.tiny.wan import small_transformer
from tests.fastpaths.fake_capture import HOST_READS, Tape
from tests.pipelines.longlive2_parts import CPU, TOKENS, clip, native, new_caches, small_longlive2

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WRAPPED = 6
"""Chunks: the window is full with the fourth, and the fifth is the first that drops one."""


@pytest.fixture(scope="module")
def models() -> dict[torch.dtype, LongLive2Transformer3DModel]:
    return {dtype: small_longlive2(dtype) for dtype in DTYPES.values()}


def reference(transformer: Any, made_of: Any, num_inference_steps: int = 4) -> torch.Tensor:
    return generate_reference(transformer, made_of.noise, made_of.text, made_of.image, num_inference_steps)


@pytest.mark.parametrize("has_image", [False, True], ids=["text", "image"])
@pytest.mark.parametrize("chunks", [1, 2, WRAPPED])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_native_is_the_reference_bit_for_bit(models: Any, dtype: torch.dtype, chunks: int, has_image: bool) -> None:
    made_of, steps = clip(chunks, dtype, has_image=has_image), 4 if chunks < WRAPPED else 2
    expected = reference(models[dtype], made_of, steps)
    assert torch.equal(expected, native(models[dtype], made_of, num_inference_steps=steps))
    assert torch.float32 == expected.dtype
    assert bool(torch.isfinite(expected).all())


@pytest.mark.parametrize("num_inference_steps", [1, 3])
def test_fewer_steps_and_more_clips_at_once_too(models: Any, num_inference_steps: int) -> None:
    made_of = clip(2, torch.float32, batch=2, has_image=True)
    expected = reference(models[torch.float32], made_of, num_inference_steps)
    assert torch.equal(expected, native(models[torch.float32], made_of, num_inference_steps=num_inference_steps))


def test_an_image_is_the_first_frame_and_moves_the_others(models: Any) -> None:
    with_image, without = clip(2, torch.float32, has_image=True), clip(2, torch.float32)
    made, plain = (native(models[torch.float32], made_of) for made_of in (with_image, without))
    assert torch.equal(with_image.image, made[:, :, :1])
    assert torch.equal(with_image.noise, without.noise)
    assert not torch.equal(plain[:, :, 1:8], made[:, :, 1:8])
    assert not torch.equal(plain[:, :, 8:], made[:, :, 8:]), "the second chunk sees the first"


@pytest.mark.parametrize("clean_chunks", [1, 2, 3])
@torch.no_grad()
def test_a_chunk_is_wans_own_forward_over_all_frames_under_a_causal_mask(models: Any, clean_chunks: int) -> None:
    """No cache, no chunks: every frame at once, each told its own timestep, and no token sees a later chunk."""
    transformer, made_of = models[torch.float32], clip(clean_chunks + 1, torch.float32)
    starts = [8 * chunk for chunk in range(clean_chunks + 1)]
    clean, told = torch.zeros(1, 8), torch.tensor([[0.0, *[833.0] * 7]])
    caches = new_caches(transformer, made_of)
    for start in starts[:-1]:
        transformer.forward_chunk(made_of.noise[:, :, start : start + 8], clean, made_of.text, caches, start, True)
    last = starts[-1]
    velocity = transformer.forward_chunk(made_of.noise[:, :, last:], told, made_of.text, caches, last, False)

    wan = small_transformer(48)
    chunk_of_token = torch.arange(8 * TOKENS * (clean_chunks + 1)) // (8 * TOKENS)
    mask = chunk_of_token[:, None] >= chunk_of_token[None, :]
    for block in wan.blocks:
        block.attn1.processor = lambda attention, hidden, text, _none, rotary: WanAttnProcessor()(
            attention, hidden, text, mask, rotary
        )
    by_token = torch.cat([clean] * clean_chunks + [told], dim=1).repeat_interleave(TOKENS, dim=1)
    whole = wan(made_of.noise, by_token, made_of.text, return_dict=False)[0]
    torch.testing.assert_close(whole[:, :, last:], velocity, rtol=1e-4, atol=1e-4)


def lose_sink(caches: LongLive2Caches, _patch: pytest.MonkeyPatch) -> None:
    caches.sink_frames = 0


def keep_smaller_sink(caches: LongLive2Caches, _patch: pytest.MonkeyPatch) -> None:
    caches.sink_frames = 7


def begin_every_chunk_at_frame_0(_caches: LongLive2Caches, patch: pytest.MonkeyPatch) -> None:
    lay = LongLive2Transformer3DModel._lay_rotary_tables
    at_frame_0 = lambda self, caches, _start, frames: lay(self, caches, 0, frames)  # noqa: E731
    patch.setattr(LongLive2Transformer3DModel, "_lay_rotary_tables", at_frame_0)


def keep_noisy_context(_caches: LongLive2Caches, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(longlive2_steps, "write_context", lambda *arguments: arguments[4].commit_chunk())


def tell_the_context_the_last_step(_caches: LongLive2Caches, patch: pytest.MonkeyPatch) -> None:
    write = longlive2_steps.write_context

    def write_noisy(transformer: Any, latents: Any, text: Any, steps: Any, caches: Any, start: int) -> None:
        patch.setattr(steps, "clean", steps.timesteps[-1])
        write(transformer, latents, text, steps, caches, start)

    patch.setattr(longlive2_steps, "write_context", write_noisy)


def remember_the_steps_of_the_last_chunk(_caches: LongLive2Caches, patch: pytest.MonkeyPatch) -> None:
    def not_forgotten(steps: ChunkSteps) -> longlive2_steps.FlowUniPC:
        steps._unipc._step = 0
        return steps._unipc

    patch.setattr(ChunkSteps, "unipc", not_forgotten)


WRONG: dict[str, tuple[Callable[[LongLive2Caches, pytest.MonkeyPatch], None], int]] = {
    "no-sink": (lose_sink, 5),
    "smaller-sink": (keep_smaller_sink, 5),
    "positions": (begin_every_chunk_at_frame_0, 2),
    "noisy-context": (keep_noisy_context, 2),
    "context-timestep": (tell_the_context_the_last_step, 2),
    "solver": (remember_the_steps_of_the_last_chunk, 2),
}
"""What goes wrong, and the chunk from which on it shows."""


@pytest.mark.parametrize(("go_wrong", "shows_in"), WRONG.values(), ids=WRONG)
def test_what_a_wrong_memory_does_shows(
    models: Any, monkeypatch: pytest.MonkeyPatch, go_wrong: Any, shows_in: int
) -> None:
    made_of = clip(shows_in, torch.float32)
    expected = reference(models[torch.float32], made_of)
    caches = new_caches(models[torch.float32], made_of)
    go_wrong(caches, monkeypatch)
    wrong = native(models[torch.float32], made_of, caches)
    right = 8 * (shows_in - 1)
    assert torch.equal(expected[:, :, :right], wrong[:, :, :right])
    assert not torch.equal(expected[:, :, right:], wrong[:, :, right:])


def test_a_smaller_window_shows(models: Any) -> None:
    made_of = clip(4, torch.float32)
    wrong = native(models[torch.float32], made_of, new_caches(models[torch.float32], made_of, frames=24))
    expected = reference(models[torch.float32], made_of)
    assert torch.equal(expected[:, :, :24], wrong[:, :, :24])
    assert not torch.equal(expected[:, :, 24:], wrong[:, :, 24:])


@torch.no_grad()
def test_a_missed_context_pass_is_refused(models: Any) -> None:
    transformer, made_of = models[torch.float32], clip(2, torch.float32)
    caches, clean = new_caches(transformer, made_of), torch.zeros(1, 8)
    transformer.forward_chunk(made_of.noise[:, :, :8], clean, made_of.text, caches, 0, write=False)
    with pytest.raises(ValueError, match="chunk from frame 8 does not follow the 0 frames written so far"):
        transformer.forward_chunk(made_of.noise[:, :, 8:], clean, made_of.text, caches, 8, write=False)


@pytest.mark.parametrize(
    ("frames", "start", "message"),
    [
        (16, 0, r"16 frames in one chunk; 8 at most were expected"),
        (8, 1024, r"frames 1024 to 1032 of a clip; the longest one has 1024 latent frames"),
        (8, 0, r"8 frames do not fit into a window of 4 beside a sink of 8"),
    ],
)
@torch.no_grad()
def test_chunks_that_the_model_cannot_hold_are_refused(models: Any, frames: int, start: int, message: str) -> None:
    transformer, made_of = models[torch.float32], clip(2, torch.float32)
    caches = new_caches(transformer, made_of, frames=4)
    with pytest.raises(ValueError, match=message):
        transformer.forward_chunk(
            made_of.noise[:, :, :frames], torch.zeros(1, frames), made_of.text, caches, start, write=False
        )


def test_memory_never_moves_and_serves_one_clip_after_another(models: Any) -> None:
    transformer = models[torch.float32]
    first, second = clip(WRAPPED, torch.float32), clip(WRAPPED, torch.float32, seed=1)
    caches = new_caches(transformer, first)
    native(transformer, first, caches)
    places = addresses(caches)
    assert torch.equal(reference(transformer, second), native(transformer, second, caches))
    assert places == addresses(caches)
    assert 32 == caches.window_frames
    assert (1, 32 * TOKENS, 2, 128) == caches.keys[0].shape


def addresses(caches: LongLive2Caches) -> list[int]:
    buffers = (*caches.keys, *caches.values, *caches.text_keys, *caches.text_values, caches.cosine, caches.sine)
    return [buffer.data_ptr() for buffer in buffers]


@torch.no_grad()
def test_one_recorded_pass_serves_every_chunk_once_the_window_is_full(models: Any) -> None:
    """As a CUDA graph would: the same memory in, the same memory out, and only what stands in it differs."""
    transformer, made_of = models[torch.float32], clip(WRAPPED, torch.float32)
    caches, told = new_caches(transformer, made_of), torch.full((1, 8), 833.0)
    eager_caches, latents = new_caches(transformer, made_of), made_of.noise[:, :, :8].clone()
    recorded: list[tuple[Tape, torch.Tensor]] = []
    for start in range(0, made_of.noise.shape[2], 8):
        chunk = made_of.noise[:, :, start : start + 8]
        expected = transformer.forward_chunk(chunk, told, made_of.text, eager_caches, start, write=True)
        latents.copy_(chunk)
        transformer.prepare_chunk(made_of.text, caches, start, 8)
        if start < 24:
            transformer.forward_prepared(latents, told, caches)
        elif not recorded:
            with Tape() as tape:
                recorded.append((tape, transformer.forward_prepared(latents, told, caches)))
        for tape, output in recorded:
            tape.replay()
            assert torch.equal(expected, output)
        caches.commit_chunk()
    assert 1 == len(recorded)


def test_a_text_that_changes_in_place_is_read_again(models: Any) -> None:
    transformer, made_of, other = models[torch.float32], clip(1, torch.float32), clip(1, torch.float32, seed=1)
    caches = new_caches(transformer, made_of)
    before = native(transformer, made_of, caches)
    made_of.text.copy_(other.text)
    after = native(transformer, made_of, caches)
    assert not torch.equal(before, after)
    assert torch.equal(reference(transformer, made_of), after)


def test_a_chunk_is_there_before_the_next_one_is_begun(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    transformer, made_of = models[torch.float32], clip(3, torch.float32)
    passes: list[tuple[int, bool]] = []
    forward = LongLive2Transformer3DModel.forward

    def watched(self: Any, **arguments: Any) -> torch.Tensor:
        passes.append((arguments["start_frame"], arguments["write"]))
        return forward(self, **arguments)

    monkeypatch.setattr(LongLive2Transformer3DModel, "forward", watched)
    caches, steps, finished = new_caches(transformer, made_of), ChunkSteps(4, CPU), []
    chunks = denoise(
        transformer, made_of.noise, made_of.text, None, steps, caches, lambda: finished.append(len(passes))
    )
    next(chunks)
    five = [*[False] * 4, True]
    assert [(0, write) for write in five] == passes
    list(chunks)
    assert [*((0, write) for write in five), *((8, write) for write in five), *[(16, False)] * 4] == passes
    assert [1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14] == finished


@torch.no_grad()
def test_the_last_chunk_is_written_where_the_clip_goes_on(models: Any) -> None:
    transformer, made_of = models[torch.float32], clip(2, torch.float32)
    steps, caches = ChunkSteps(4, CPU), new_caches(transformer, made_of)
    for _ in denoise(transformer, made_of.noise, made_of.text, None, steps, caches, writes_last_chunk=True):
        pass
    assert 16 == caches.held_frames == caches.next_frame


def test_half_a_chunk_is_refused(models: Any) -> None:
    made_of = clip(1, torch.float32)
    chunks = denoise(
        models[torch.float32],
        made_of.noise[:, :, :5],
        made_of.text,
        None,
        ChunkSteps(4, CPU),
        new_caches(models[torch.float32], made_of),
    )
    with pytest.raises(ValueError, match="5 latent frames are not a multiple of 8"):
        next(chunks)


def test_inputs_stay_as_they_were(models: Any) -> None:
    made_of, same = (clip(2, torch.float32, has_image=True) for _ in range(2))
    native(models[torch.float32], made_of)
    reference(models[torch.float32], made_of)
    assert torch.equal(same.noise, made_of.noise)
    assert torch.equal(same.text, made_of.text)
    assert same.image is not None and made_of.image is not None
    assert torch.equal(same.image, made_of.image)


def test_the_reference_leaves_the_transformer_as_it_was(models: Any) -> None:
    transformer = models[torch.float32]
    before = [block.attn1.processor for block in transformer.blocks]
    with pytest.raises(RuntimeError):
        generate_reference(transformer, torch.zeros(1, 48, 8, 4, 6), torch.zeros(1, 5, 63))
    assert before == [block.attn1.processor for block in transformer.blocks]


def test_parameters_are_wans_by_name_and_shape_and_are_taken_over_not_copied() -> None:
    with torch.device("meta"):
        wan, own = (
            kind(**sizes)
            for kind, sizes in (
                (WanTransformer3DModel, {"num_attention_heads": 24, "in_channels": 48, "out_channels": 48}),
                (LongLive2Transformer3DModel, {"num_layers": 40, "ffn_dim": 13824}),
            )
        )
    assert shapes(wan) == shapes(own)
    transformer = small_transformer(48)
    parameters = dict(transformer.named_parameters())
    taken = as_longlive2(transformer)
    assert all(parameter is parameters[name] for name, parameter in taken.named_parameters())
    with pytest.raises(ValueError, match="the transformer is LongLive2Transformer3DModel"):
        as_longlive2(taken)


def shapes(model: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def test_the_default_sizes_are_the_released_ones() -> None:
    with torch.device("meta"):
        released = LongLive2Transformer3DModel()
    assert 4_999_787_712 == sum(parameter.numel() for parameter in released.parameters())


class NoHostRead(torch.utils._python_dispatch.TorchDispatchMode):
    """Fails where a tensor's value is asked for by the host, which waits for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in HOST_READS, f"the host waits for {func}"
        return func(*args, **(kwargs or {}))


def test_the_loop_asks_the_device_nothing(models: Any) -> None:
    transformer, made_of = models[torch.float32], clip(5, torch.float32, has_image=True)
    steps, caches = ChunkSteps(4, CPU), new_caches(transformer, made_of)
    with NoHostRead():
        chunks = list(denoise(transformer, made_of.noise, made_of.text, made_of.image, steps, caches))
    assert 5 == len(chunks)
