"""LongLive 2 in a session: native == our reference, bit for bit; frames that come early; what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.configuration_utils import FrozenDict
from PIL import Image

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines import longlive2
from fuseproof.pipelines import session as session_module
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.session import GenerationResult, Session, SessionSettings
from fuseproof.pipelines.streamed_decode import StreamedDecoder
from tests.fastpaths.fake_capture import FakeCapture
from tests.pipelines.test_parity_wan import BASE as CLIP_OF_WAN
from tests.pipelines.test_parity_wan import IMAGE

CPU = torch.device("cpu")
BASE = replace(CLIP_OF_WAN, num_frames=61, num_inference_steps=4, guidance_scale=1.0, width=32)
ONE_CHUNK: dict[str, Any] = {"num_frames": 29, "num_inference_steps": 1}
CASES: dict[str, dict[str, Any]] = {
    "two-chunks": {},
    "image": {"image": IMAGE, "width": 64},
    "one-chunk-of-two-steps": {"num_frames": 29, "num_inference_steps": 2},
    "three-chunks": {"num_frames": 93, "num_inference_steps": 1},
    "largest-seed-and-other-letters": {**ONE_CHUNK, "seed": 2**64 - 1, "prompt": "красная панда &amp; 小熊猫"},
}
PARITY = [
    *[pytest.param(torch.float32, changes, id=name) for name, changes in CASES.items()],
    pytest.param(torch.bfloat16, {"image": IMAGE, "num_inference_steps": 2, "num_frames": 29}, id="bf16-image"),
]


@pytest.fixture(scope="module")
def pipes(tiny_longlive2_folder: Path) -> dict[torch.dtype, Any]:
    checkpoint = check_checkpoint(tiny_longlive2_folder)
    return {dtype: load_pipeline(checkpoint, dtype=dtype, device=CPU) for dtype in (torch.float32, torch.bfloat16)}


@pytest.fixture
def pipe(pipes: dict[torch.dtype, Any]) -> Any:
    return pipes[torch.float32]


def run(pipe: Any, backend: str, request: GenerationRequest, dtype: torch.dtype = torch.float32) -> GenerationResult:
    with Session(pipe, SessionSettings(backend=backend), CPU, dtype, SILENT) as session:
        return session.run(request)


@pytest.mark.parametrize(("dtype", "changes"), PARITY)
def test_native_equals_the_reference_bit_for_bit(
    pipes: dict[torch.dtype, Any], dtype: torch.dtype, changes: dict[str, Any]
) -> None:
    request, pipe = replace(BASE, **changes), pipes[dtype]
    reference, native = (run(pipe, backend, request, dtype) for backend in ("reference", "native"))
    assert (request.num_frames, request.height, request.width, 3) == reference.image.shape
    assert np.isfinite(reference.image).all()
    assert reference.image.tobytes() == native.image.tobytes()
    assert reference.latents.tobytes() == native.latents.tobytes()
    assert "float32" == reference.latents_dtype == native.latents_dtype
    assert reference.work == native.work
    chunks = ((request.num_frames or 0) + 3) // 32
    assert chunks * request.num_inference_steps == len(reference.denoise_steps_ms) == len(native.denoise_steps_ms)


@pytest.mark.parametrize("architecture", ["UMT5EncoderModel", "T5EncoderModel"])
def test_a_folder_may_call_its_text_encoder_t5_and_its_config_decides(
    tiny_longlive2_folder: Path, tmp_path: Path, architecture: str
) -> None:
    folder = Path(shutil.copytree(tiny_longlive2_folder, tmp_path / "model"))
    index, config = folder / "model_index.json", folder / "text_encoder" / "config.json"
    index.write_text(index.read_text().replace('"UMT5EncoderModel"', '"T5EncoderModel"'))
    config.write_text(config.read_text().replace('"UMT5EncoderModel"', f'"{architecture}"'))
    pipe = load_pipeline(check_checkpoint(folder), dtype=torch.float32, device=CPU)
    assert "UMT5EncoderModel" == type(pipe.text_encoder).__name__
    config.write_text(config.read_text().replace('"umt5"', '"t5"'))
    with pytest.raises(FuseproofError, match="text_encoder"):
        load_pipeline(check_checkpoint(folder), dtype=torch.float32, device=CPU)


def test_the_vae_computes_in_the_runs_dtype(pipes: dict[torch.dtype, Any]) -> None:
    assert list(pipes) == [pipe.vae.dtype for pipe in pipes.values()]


def test_frames_are_there_chunk_by_chunk(pipe: Any) -> None:
    native, reference = (run(pipe, backend, BASE) for backend in ("native", "reference"))
    assert ([29, 32], [61]) == tuple([one.frames for one in result.frame_arrivals] for result in (native, reference))
    first, last = (one.milliseconds for one in native.frame_arrivals)
    assert 0 < first < last <= native.worker_ms
    assert [
        "InputValidationStage", "TextEncodingStage", "LatentPreparationStage", "TimestepPreparationStage",
        "DenoisingStage", "DecodingStage",
    ] == [stage.name for stage in native.stages]  # fmt: skip
    assert sum(stage.milliseconds for stage in native.stages) <= native.worker_ms


def test_work_counts_four_forwards_a_chunk_and_the_pass_that_the_next_one_needs(pipe: Any) -> None:
    work = run(pipe, "native", BASE).work
    assert (9, 9 * (8 + 512)) == (work["transformer_calls"], work["transformer_tokens"]), "8 frames of one patch"


def test_the_memory_of_a_clip_stays_where_it_is_for_the_next_one(pipe: Any) -> None:
    shapes = [torch.Size((1, 48, 8, rows, columns)) for rows, columns in ((2, 2), (4, 2), (6, 2))]
    first, second, third = shapes
    kept = [pipe.caches_for(shape, torch.float32, CPU) for shape in (first, second, first, third, second, first)]
    assert kept[0] is kept[2], "one more size may be warmed besides the request's own"
    assert kept[1] is not kept[4], "and no third one"
    assert len(pipe.kept_caches) == 2


def test_a_clip_begins_with_its_image_whatever_the_noise(pipe: Any) -> None:
    request = replace(BASE, image=IMAGE, width=64, **ONE_CHUNK)
    inverted = replace(IMAGE, pixels=Image.eval(IMAGE.pixels, lambda value: 255 - value))
    clip = run(pipe, "native", request).image
    other_noise = run(pipe, "native", replace(request, seed=43)).image
    other_image = run(pipe, "native", replace(request, image=inverted)).image
    assert clip[0].tobytes() == other_noise[0].tobytes(), "the VAE is causal: frame 0 is the first latent frame's"
    assert 0.5 < np.mean(clip[1:] != other_noise[1:])
    assert 0.5 < np.mean(clip[0] != other_image[0])


def test_a_later_chunk_sees_the_one_before(pipe: Any) -> None:
    """Its own noise is the same; what it saw is not."""
    noise = torch.randn(1, 48, 16, 2, 2, generator=torch.Generator().manual_seed(1))
    text = torch.randn(1, 512, 64, generator=torch.Generator().manual_seed(2))
    steps = longlive2.longlive2_steps.ChunkSteps(1, CPU)
    ends = []
    for first in (noise, torch.cat([-noise[:, :, :8], noise[:, :, 8:]], 2)):
        caches = pipe.caches_for(first.shape, torch.float32, CPU)
        with torch.no_grad():
            ends.append(list(longlive2.longlive2_steps.denoise(pipe.transformer, first, text, None, steps, caches))[1])
    assert 0.9 < (ends[0] != ends[1]).float().mean()


def test_a_clip_whose_chunks_have_other_bits_is_decoded_again_and_said(
    pipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(BASE, num_inference_steps=1)
    expected = run(pipe, "reference", request).image
    eager = StreamedDecoder.decode
    monkeypatch.setattr(StreamedDecoder, "decode", lambda self, latents: eager(self, latents) * 0.5)
    monkeypatch.setattr(StreamedDecoder, "is_as_at_once", lambda _self: False)
    with Session(pipe, SessionSettings(), CPU, torch.float32, SILENT) as session:
        results = [session.run(request) for _ in range(2)]
        assert [longlive2.DECODED_AGAIN] == [text for text in session.warnings if "decoded again" in text]
    for result in results:
        assert expected.tobytes() == result.image.tobytes()
        assert [61] == [one.frames for one in result.frame_arrivals], "no frame was there any earlier"


# Warm-ups


@pytest.mark.parametrize(("expected", "steps"), [(3, 2), (4, 4), (4, None)])
def test_a_warm_up_meets_every_kind_of_step_and_may_have_fewer(pipe: Any, expected: int, steps: int | None) -> None:
    with Session(pipe, SessionSettings(), CPU, torch.float32, SILENT) as session:
        session.warm_up(replace(BASE, num_frames=29), steps)
        assert expected == session.warmup_steps


# CUDA graphs, recorded on the CPU


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCapture]:
    fake = FakeCapture()
    monkeypatch.setattr(session_module, "CudaCapture", lambda _device: fake)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: fake.is_recording)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: fake.is_recording)
    yield fake


def test_one_graph_serves_every_forward_of_a_chunk_from_text_and_from_an_image(pipe: Any, capture: FakeCapture) -> None:
    own = replace(BASE, width=64, num_inference_steps=3)
    other = replace(BASE, height=64, num_frames=29, num_inference_steps=3)
    requests = [own, replace(own, seed=43, image=IMAGE)]
    expected = [run(pipe, "reference", request).image.tobytes() for request in requests]
    settings = SessionSettings(enable_breakable_cuda_graph=True, fastpaths="off")
    with Session(pipe, settings, CPU, torch.float32, SILENT) as session:
        for request in (own, other):
            session.warm_up(request)
        assert expected == [session.run(request).image.tobytes() for request in requests]
        report = session.graphs_report()
    assert (3, 14, 0) == tuple(report[name] for name in ("captured", "replayed", "missed")), "places, of two sizes"
    assert "forward_prepared" not in vars(pipe.transformer)


def test_a_graph_is_not_replayed_where_the_clip_lies_in_other_memory(pipe: Any, capture: FakeCapture) -> None:
    request = replace(BASE, num_frames=29, num_inference_steps=3)
    expected = run(pipe, "reference", request).image.tobytes()
    settings = SessionSettings(enable_breakable_cuda_graph=True, fastpaths="off")
    with Session(pipe, settings, CPU, torch.float32, SILENT) as session:
        session.warm_up(request)
        held = list(pipe.kept_caches.values())  # so that no new memory lies where it was
        pipe.kept_caches.clear()
        assert expected == session.run(request).image.tobytes()
        report = session.graphs_report()
    assert held and (0, 3) == (report["replayed"], report["missed"])
    assert "the clip's keys and values lie in other memory" in report["reason"]


# Refused


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("height is 48; a multiple of 32", {"height": 48}),
        ("None frames; whole chunks", {"num_frames": None}),
        ("60 frames; whole chunks were expected: 29, 61, 93", {"num_frames": 60}),
        ("5 steps; the model was distilled to 4", {"num_inference_steps": 5}),
        ("guidance scale 5; the model knows 1", {"guidance_scale": 5.0}),
        ("renormalised guidance", {"enable_cfg_renorm": True}),
        ("prompt rewriting", {"enable_prompt_rewrite": True}),
        ("a prompt enhancer", {"use_pe": True}),
    ],
)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_what_the_loop_would_change_is_refused(pipe: Any, expected: str, changes: dict[str, Any], backend: str) -> None:
    with pytest.raises(UsageError, match=expected):
        run(pipe, backend, replace(BASE, **changes))


@pytest.mark.parametrize(
    ("expected", "part", "changes"),
    [
        ("has scale_factor_spatial 8; its blocks and patches", "vae", {"scale_factor_spatial": 8}),
        ("has in_channels 12; 3 was expected for patch_size null", "vae", {"patch_size": None}),
        ("16 latent frames, and .* rotary table ends at 15", "transformer", {"rope_max_seq_len": 15}),
    ],
    ids=["size", "patches", "rotary-table"],
)
def test_a_model_that_contradicts_its_own_config_is_refused_before_it_runs(
    pipe: Any, expected: str, part: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = getattr(pipe, part)
    monkeypatch.setattr(module, "_internal_dict", FrozenDict({**module.config, **changes}))
    for backend in ("native", "reference"):
        with pytest.raises(FuseproofError, match=expected):
            run(pipe, backend, BASE)


def test_a_vae_of_other_lengths_is_refused_before_it_runs(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "vae_scale_factor_temporal", 2)
    with pytest.raises(FuseproofError, match="makes 2 frames of one; chunks are counted in 4"):
        run(pipe, "native", BASE)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_clip_of_another_size_is_an_error(pipe: Any, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    eager = pipe.video_processor.postprocess_video
    monkeypatch.setattr(
        pipe.video_processor, "postprocess_video", lambda clip, output_type: eager(clip[..., :16], output_type)
    )
    with pytest.raises(FuseproofError, match="29 frames of 16x32 pixels of 3 channels; 29 frames of 32x32 "):
        run(pipe, backend, replace(BASE, **ONE_CHUNK))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_prompt_that_is_cut_is_said_to_be(pipe: Any, backend: str) -> None:
    with Session(pipe, SessionSettings(backend=backend, fastpaths="off"), CPU, torch.float32, SILENT) as session:
        session.run(replace(BASE, prompt=600 * "a", **ONE_CHUNK))
        assert ["a prompt has 602 tokens and only its first 512 were used"] == session.warnings


def test_there_is_nothing_to_fall_back_to(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FuseproofError, match="diffusers has no LongLive2Pipeline") as caught:
        Session(pipe, SessionSettings(backend="diffusers"), CPU, torch.float32, SILENT)
    assert "Use --backend reference." == caught.value.next_step
    monkeypatch.setattr(pipe.vae, "use_tiling", True)
    for backend in ("native", "auto"):
        with pytest.raises(FuseproofError, match="the VAE decodes in tiles"):
            Session(pipe, SessionSettings(backend=backend), CPU, torch.float32, SILENT)


def test_the_pipeline_has_no_call_of_its_own(pipe: Any) -> None:
    with pytest.raises(TypeError, match="has no call"):
        pipe(prompt="a red panda")


def test_each_thread_remembers_its_own_clip(pipe: Any) -> None:
    def caches() -> Any:
        return pipe.caches_for(torch.Size((1, 48, 8, 4, 2)), torch.float32, CPU)

    own = caches()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(caches).result()
    assert own is caches()
    assert own is not other and own.keys[0].data_ptr() != other.keys[0].data_ptr()


@pytest.mark.parametrize("name", ["", "attn1", "attn2"])
def test_a_hook_that_the_native_loop_would_pass_over_is_an_error(name: str, pipe: Any) -> None:
    block = pipe.transformer.blocks[1]
    request = replace(BASE, **ONE_CHUNK)
    with Session(pipe, SessionSettings(backend="native"), CPU, torch.float32, SILENT) as session:
        hook = block.get_submodule(name).register_forward_hook(lambda module, inputs, output: output)
        try:
            with pytest.raises(FuseproofError, match=f"blocks[.]1{'[.]' if name else ''}{name} has a hook") as caught:
                session.run(request)
        finally:
            hook.remove()
    assert "--backend reference" in str(caught.value.next_step)
