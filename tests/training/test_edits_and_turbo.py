"""Edits and the Turbo: what training sees is what the editing pipeline does, and what is stored is what was trained."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fuseproof.pipelines.packaged_parts import merge_low_rank
from fuseproof.pipelines.vision_processor import released_text_processor
from training import edit_stage, evaluate_edits, flow_stage, turbo_stage
from training.edit_prompts import EDIT_SENTENCE, EditTemplate, edit_ids, embed_instructions
from training.edit_stage import EditSet, EditSettings, Tasks
from training.edit_stages import forget_other_turbo
from training.edits import draw_edits
from training.folders import LARGEST_PACKAGE_BYTES, Run, write_checkpoint
from training.geometry import (
    FULL,
    SMOKE,
    build_scheduler,
    build_text_encoder,
    build_transformer,
    build_vae,
    parameter_count,
)
from training.low_rank import RANK, Factors, write_factors
from training.pace import Pace
from training.parts import BASE, DIFFERENCE, EDIT, TURBO, whole, write_part
from training.stages import shift_mu
from training.tokens import Template, build_tokenizer, drawn_positions, padded_ids
from training.turbo_stage import SEGMENTS, Distillation, Schedule, TurboSettings

CPU = torch.device("cpu")
TEXTS = ['change the letter "A" to a cross', "", "make the background purple"]


def restless(model: Any, seed: int) -> Any:
    """The model with an output: as built, its modulations and output are zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.05, generator=generator)
    return model


@pytest.fixture(scope="module")
def pipe() -> Any:
    """An editing pipeline of the smoke geometry, whose transformer is random, on a canvas of its size."""
    from diffusers import LongCatImageEditPipeline

    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    pipeline = LongCatImageEditPipeline(
        scheduler=build_scheduler(),
        vae=build_vae(SMOKE).eval(),
        text_encoder=build_text_encoder(SMOKE, tokenizer).eval(),
        tokenizer=tokenizer,
        text_processor=released_text_processor(tokenizer),
        transformer=restless(build_transformer(SMOKE), 1).eval(),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module")
def tasks(pipe: Any) -> Tasks:
    tokenizer = pipe.tokenizer
    template = EditTemplate.of(tokenizer, SMOKE.side, CPU)
    return Tasks(Template.of(tokenizer, CPU), SMOKE, shift_mu(pipe.scheduler, SMOKE), template)


@pytest.fixture(scope="module")
def data(pipe: Any) -> EditSet:
    return EditSet.encode(pipe.vae, draw_edits(1, 8, 1), pipe.tokenizer, SMOKE.side, CPU)


@torch.no_grad()
@pytest.mark.parametrize("padding", [None, 16], ids=["all tokens", "some padding"])
def test_instructions_are_embedded_as_the_pipeline_does(pipe: Any, tasks: Tasks, padding: int | None) -> None:
    template = tasks.edit_template
    assert EDIT_SENTENCE + "<|vision_start|><|image_pad|><|vision_end|>" == pipe.prompt_template_encode_prefix
    positions = drawn_positions(padding, 1, CPU)
    found = embed_instructions(pipe.text_encoder, padded_ids(pipe.tokenizer, TEXTS), positions, template)
    vision = len(template.vision)
    kept = torch.cat([torch.arange(vision), positions + vision])
    for number, text in enumerate(TEXTS):
        image = Image.new("RGB", (SMOKE.side // 2, SMOKE.side // 2), (200, 20 * number, 0))
        expected, ids = pipe.encode_prompt(prompt=text, image=image)
        assert vision + 512 == expected.shape[1]
        torch.testing.assert_close(found[number], expected[0, kept], rtol=1e-4, atol=1e-5)
    pictures = torch.zeros(1, 16, 8, 8)
    *_, made, given = pipe.prepare_latents(pictures, 1, 16, 64, 64, torch.float32, expected.shape[1], CPU, None)
    expected_ids = torch.cat([ids[kept].double(), made.double(), given])
    assert torch.equal(expected_ids, edit_ids(SMOKE, positions, template).double())


def test_pictures_before_are_encoded_with_their_captions(pipe: Any, data: EditSet) -> None:
    drawn = draw_edits(1, 8, 1)
    assert torch.equal(padded_ids(pipe.tokenizer, [drawn[3].edit.instruction])[0], data.instructions[3])
    assert torch.equal(padded_ids(pipe.tokenizer, [drawn[1].captions[2].text])[0], data.before.ids[6])
    differ = (data.before.latents != data.after).flatten(1).any(dim=1)
    assert differ.all()


@torch.no_grad()
def test_a_still_transformer_is_wrong_by_the_whole_velocity(pipe: Any, tasks: Tasks, data: EditSet) -> None:
    batch = edit_stage.draw_edit_batch(data, torch.arange(4), 0, tasks.mu, EditSettings(), full_text=False)
    still = build_transformer(SMOKE)
    losses = edit_stage.edit_losses(still, pipe.text_encoder, batch, tasks.edit_template, SMOKE)
    torch.testing.assert_close(losses, (batch.noise - batch.latents).square().mean(dim=(1, 2)))


def edited(pipe: Any, data: EditSet, tasks: Tasks, folder: Path, *, in_runs: int) -> Any:
    """The state after two steps on both tasks, in one or more runs that resume each other."""
    settings = EditSettings(batch=2, log_every=1, full_text_from=2.0)
    for run in range(in_runs):
        models = copy.deepcopy(pipe.transformer), copy.deepcopy(pipe.text_encoder)
        state = flow_stage.new_state(*models, settings, CPU)
        pace = Pace(1e9, 1e9, 2, stop_at_step=2 * (run + 1) // in_runs)
        if run:
            state.load(folder / "state.pt", pace, CPU)
        edit_stage.train_edits(state, data, tasks, pace, settings, save=lambda: None)
        state.save(folder / "state.pt", pace)
    return state


def distillation_of(pipe: Any, data: EditSet, tasks: Tasks, settings: TurboSettings, student: Any) -> Distillation:
    schedule = Schedule.of(pipe.scheduler, tasks.mu, settings.teacher_steps, CPU)
    return Distillation(student, pipe.transformer, pipe.text_encoder, data, tasks, schedule, settings)


def distilled(pipe: Any, data: EditSet, tasks: Tasks, folder: Path, *, in_runs: int) -> Any:
    """The state after two batches of the Turbo's stage."""
    settings = TurboSettings(batch=1, log_every=SEGMENTS, full_text_from=2.0, teacher_steps=1, rank=2)
    for run in range(in_runs):
        student = copy.deepcopy(pipe.transformer)
        state = turbo_stage.new_state(student, settings, CPU)
        pace = Pace(1e9, 1e9, 2 * SEGMENTS, stop_at_step=2 * SEGMENTS * (run + 1) // in_runs)
        if run:
            state.load(folder / "state.pt", pace, CPU)
        turbo_stage.train_turbo(state, distillation_of(pipe, data, tasks, settings, student), pace, lambda: None)
        state.save(folder / "state.pt", pace)
    return state


@pytest.mark.parametrize("train", [edited, distilled])
def test_a_resumed_stage_ends_where_an_unbroken_one_does(
    train: Any, pipe: Any, data: EditSet, tasks: Tasks, tmp_path: Path
) -> None:
    runs = [train(pipe, data, tasks, tmp_path, in_runs=count) for count in (1, 2)]
    assert 2 == len(runs[0].curve)
    assert [point.losses for point in runs[0].curve] == [point.losses for point in runs[1].curve]
    for name, module in runs[0].modules.items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, runs[1].modules[name].state_dict()[key]), (name, key)


def test_the_turbos_sigmas_are_among_the_teachers(pipe: Any, tasks: Tasks) -> None:
    own, teachers = (Schedule.of(pipe.scheduler, tasks.mu, steps, CPU) for steps in (1, 4))
    torch.testing.assert_close(own.sigmas, teachers.sigmas[::4])
    assert [1.0, 0.0] == [teachers.segment(0)[0].item(), teachers.segment(7)[-1].item()]


@torch.no_grad()
def test_the_teacher_is_the_editing_pipeline(pipe: Any, tasks: Tasks, data: EditSet) -> None:
    """Through all segments from one noise, the teacher ends where diffusers' own denoising does."""
    settings = TurboSettings(teacher_steps=1)
    distillation = distillation_of(pipe, data, tasks, settings, pipe.transformer)
    conditions = distillation.conditions(torch.tensor([2]), 0, full_text=True)
    noise = torch.randn(1, SMOKE.image_tokens, 64, generator=torch.Generator().manual_seed(3))
    latents = noise
    for number in range(SEGMENTS):
        latents = distillation.teacher_end(latents, number, conditions)
    expected = diffusers_latents(pipe, conditions, noise, settings)
    torch.testing.assert_close(latents, expected, rtol=1e-3, atol=1e-4)
    assert (latents - noise).abs().max() > 0.1


def diffusers_latents(pipe: Any, conditions: Any, noise: torch.Tensor, settings: TurboSettings) -> torch.Tensor:
    """What ``LongCatImageEditPipeline.__call__`` makes of ``noise``, its canvas and its input's latents given."""
    from diffusers.pipelines.longcat_image import pipeline_longcat_image_edit as module

    given = pipe._unpack_latents(conditions.given, SMOKE.side, SMOKE.side, 8)
    eager = module.calculate_dimensions, pipe._encode_vae_image
    module.calculate_dimensions = lambda _area, _ratio: (SMOKE.side, SMOKE.side)
    pipe._encode_vae_image = lambda image, generator: given
    try:
        return pipe(
            image=Image.new("RGB", (SMOKE.side, SMOKE.side)),
            prompt=draw_edits(1, 8, 1)[2].edit.instruction,
            latents=noise,
            num_inference_steps=SEGMENTS,
            guidance_scale=settings.guidance,
            output_type="latent",
        ).images
    finally:
        module.calculate_dimensions = eager[0]
        del pipe._encode_vae_image


def test_one_step_of_an_unguided_teacher_asks_nothing_of_the_student(pipe: Any, tasks: Tasks, data: EditSet) -> None:
    settings = TurboSettings(teacher_steps=1, guidance=1.0)
    distillation = distillation_of(pipe, data, tasks, settings, pipe.transformer)
    conditions = distillation.conditions(torch.arange(2), 0, full_text=False)
    loss, own, teachers = distillation.segment(torch.ones_like(conditions.given), 3, conditions)
    assert loss.item() < 1e-8
    torch.testing.assert_close(own, teachers, rtol=1e-3, atol=1e-4)


def test_stored_factors_give_the_trained_weights(tmp_path: Path) -> None:
    """What is merged into the packaged weights is what the student computes with, to the rounding of bf16."""
    from safetensors.torch import load, save

    model = restless(build_transformer(SMOKE), 2).to(torch.bfloat16).float()
    stored = save({name: value.to(torch.bfloat16) for name, value in model.state_dict().items()})
    factors = Factors(model, 3, seed=1)
    for parameter in factors.parameters():
        parameter.data.normal_(0, 0.1).copy_(parameter.data.to(torch.bfloat16))
    write_factors(tmp_path / "difference.safetensors", factors.tensors())
    merged = load(merge_low_rank(stored, (tmp_path / "difference.safetensors").read_bytes()))
    assert set(load(stored)) == set(merged)
    for name in factors.names:
        trained = model.get_submodule(name).weight.detach()
        torch.testing.assert_close(merged[f"{name}.weight"].float(), trained, rtol=2**-8, atol=1e-6)
    assert torch.equal(load(stored)["x_embedder.bias"], merged["x_embedder.bias"])


def test_the_whole_family_fits_into_a_package(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    transformer = build_transformer(FULL)
    models = (transformer, build_vae(FULL), build_text_encoder(FULL, tokenizer))
    weights = 2 * sum(parameter_count(model) for model in models)
    difference = write_factors(tmp_path / DIFFERENCE, Factors(transformer, RANK, seed=0).tensors())
    headers = 150_000
    assert difference < 1_300_000
    assert weights + difference + headers < LARGEST_PACKAGE_BYTES


def test_a_part_is_a_checkpoint_that_edits(pipe: Any, tmp_path: Path) -> None:
    """Written as parts, put together, read as strictly as any checkpoint, edited with by diffusers' own pipeline."""
    transformer = copy.deepcopy(pipe.transformer)
    models = copy.deepcopy(pipe.vae), copy.deepcopy(pipe.text_encoder), transformer
    write_checkpoint(tmp_path / BASE, *models, pipe.tokenizer, pipe.scheduler, {"step": 3})
    factors = Factors(transformer.float(), 2, seed=1)
    for parameter in factors.parameters():
        parameter.data.normal_(0, 0.2)
    write_factors(tmp_path / TURBO / DIFFERENCE, factors.tensors())
    pictures = []
    edits = evaluate_edits.evaluation_edits(1)
    for name in (EDIT, TURBO):
        part = write_part(tmp_path, name, SMOKE.side, pipe.tokenizer, {"step": 1})
        assert name == EDIT or not list(part.rglob("diffusion_pytorch_model.safetensors"))
        with whole(part) as folder:
            checkpoint, loaded = evaluate_edits.load(folder, CPU)
            assert name == checkpoint.family.name
            sampling = evaluate_edits.Sampling(2, checkpoint.family.default_guidance_scale, 0)
            judged = next(evaluate_edits.judge(loaded, edits, checkpoint.canvas_pixels, sampling))
        assert (SMOKE.side, SMOKE.side, 3) == judged.made.shape
        pictures.append(judged.made)
    assert np.any(pictures[0] != pictures[1])
    evaluate_edits.write(tmp_path / "evaluation", "some", [judged])
    assert (tmp_path / "evaluation" / "some.png").is_file()


def test_a_turbo_of_other_weights_is_not_resumed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    weights = run.models / BASE / "weights.safetensors"
    weights.parent.mkdir(parents=True)
    found = []
    for content in (b"first", b"first", b"second"):
        weights.write_bytes(content)
        forget_other_turbo(run)
        found.append(run.state("turbo").is_file())
        run.state("turbo").write_bytes(b"")
    assert [False, True, False] == found
