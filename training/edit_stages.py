"""The stages ``edit`` and ``turbo``: from the command line's options to what they leave behind in ``models``."""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training import edit_stage, flow_stage, stages, turbo_stage
from training.copying import begin_copying
from training.dataset import code_key
from training.edit_prompts import EditTemplate
from training.edit_stage import EditSet, Tasks
from training.edits import draw_edits
from training.flow_stage import LatentSet
from training.folders import Run, write_checkpoint
from training.geometry import Geometry
from training.gradients import total_of
from training.low_rank import Factors, write_factors
from training.pace import Pace
from training.package import weights_sha256
from training.parts import BASE, DIFFERENCE, EDIT, TRAINING, TURBO, mark_trained, write_part
from training.state import StageState, save_whole
from training.tokens import Template


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that a stage begins from, on a device in fp32 arithmetic, and what its ``training.json`` says."""

    folder: Path
    pipe: Any
    progress: dict[str, Any]

    @classmethod
    def of(cls, folder: Path, device: torch.device) -> Loaded:
        """Read it; nothing is fetched."""
        from diffusers import LongCatImagePipeline

        pipe = LongCatImagePipeline.from_pretrained(folder, dtype=torch.float32, text_processor=None).to(device)
        pipe.vae.eval()
        return cls(folder, pipe, json.loads((folder / TRAINING).read_text(encoding="utf-8")))


def run_edit(run: Run, geometry: Geometry, pace: Pace, options: argparse.Namespace, device: torch.device) -> list[str]:
    """Go on with the transformer on both tasks; write both checkpoints."""
    settings = stages.chosen(edit_stage.EditSettings(), options)
    loaded = Loaded.of(first_folder(run, options), device)
    pipe, before = loaded.pipe, loaded.progress
    if before.get("stage") == "edit":
        pace.step, pace.spent_before_s = before["step"], before["spent_s"]
        pace.optimizer_began_at = pace.step
    else:
        begin_copying(pipe.transformer)
    replay = stages.is_wanted(options.replay, device)
    state = flow_stage.new_state(pipe.transformer, pipe.text_encoder, settings, device, replay=replay)
    lines = [f"edit: weights of {loaded.folder}", stages.begun(state, run, "edit", pace, options, device)]
    tasks = _tasks(loaded, geometry)
    data = edit_set(run, loaded, geometry, options, device)
    lines.append(f"edit: {len(data)} pairs; {pace.run_spent_s:.1f} s before the first step")
    rows = torch.arange(settings.batch, device=device) % len(data)

    losses_of = edit_stage.losses_of(state, tasks)

    def rehearse(full_text: bool) -> torch.Tensor:
        to_draw, to_edit = edit_stage.draw_both(data, rows, 0, tasks, settings, full_text=full_text)
        return total_of(losses_of((*to_draw, *to_edit)))

    prepare = stages.compiler(pipe.transformer, state, rehearse, options, device)
    step = stages.step_on(device, losses_of, state, options)

    def save() -> None:
        stages.keep(run, "edit", state, pace)

    edit_stage.train_edits(state, data, tasks, pace, settings, save, prepare, step)
    save()
    progress = {
        "stage": "edit",
        "step": pace.step,
        "spent_s": round(pace.spent_s, 1),
        "share": round(pace.share, 4),
        "drawing_steps": before.get("drawing_steps", before["step"]),
    }
    stored = _write_both(run.models, geometry, pipe, state, progress)
    lines += [stages.throughput(state, 2 * settings.batch), stages.last(state, "edit")]
    return [*lines, f"{run.models}: {stored / 1e6:.2f} MB of weights, for both tasks"]


def run_turbo(run: Run, geometry: Geometry, pace: Pace, options: argparse.Namespace, device: torch.device) -> list[str]:
    """Distil the checkpoint of both tasks; write the Turbo's difference beside it."""
    settings = stages.chosen(turbo_stage.TurboSettings(), options)
    forget_other_turbo(run)
    loaded = Loaded.of(run.models / BASE, device)
    pipe, student = loaded.pipe, loaded.pipe.transformer
    teacher = copy.deepcopy(student).requires_grad_(False)
    pipe.text_encoder.requires_grad_(False)
    state = turbo_stage.new_state(student, settings, device)
    lines = [
        f"turbo: {parameter_count_of(state)} parameters in factors of rank {settings.rank}",
        stages.begun(state, run, "turbo", pace, options, device),
    ]
    tasks = _tasks(loaded, geometry)
    schedule = turbo_stage.Schedule.of(pipe.scheduler, tasks.mu, settings.teacher_steps, device)
    data = edit_set(run, loaded, geometry, options, device)
    lines.append(f"turbo: {len(data)} pairs; {pace.run_spent_s:.1f} s before the first step")
    rows = torch.arange(settings.batch, device=device) % len(data)
    distillation = turbo_stage.Distillation(student, teacher, pipe.text_encoder, data, tasks, schedule, settings)

    def rehearse(full_text: bool) -> torch.Tensor:
        conditions = distillation.conditions(rows, 0, full_text=full_text)
        return distillation.segment(torch.zeros_like(conditions.given), 0, conditions)[0]

    prepare = stages.compiler(Pair(teacher, student), state, rehearse, options, device)

    def save() -> None:
        stages.keep(run, "turbo", state, pace)

    turbo_stage.train_turbo(state, distillation, pace, save, prepare)
    save()
    averaged = state.averages["factors"].model
    assert isinstance(averaged, Factors)
    stored = write_factors(run.models / TURBO / DIFFERENCE, averaged.tensors())
    progress = {"stage": "turbo", "step": pace.step, "spent_s": round(pace.spent_s, 1), "share": round(pace.share, 4)}
    write_part(run.models, TURBO, geometry.side, pipe.tokenizer, progress)
    lines += [stages.throughput(state, settings.batch), stages.last(state, "turbo")]
    return [*lines, f"{run.models / TURBO}: a difference of {stored / 1e6:.2f} MB"]


def first_folder(run: Run, options: argparse.Namespace) -> Path:
    """What the edit stage begins from: what is named, what it left itself where it is resumed, or the drawing model."""
    own = run.models / BASE
    if options.begin_from is not None:
        return Path(options.begin_from)
    return own if options.resume and own.is_dir() else run.checkpoint


def forget_other_turbo(run: Run) -> None:
    """Delete what a Turbo of other weights left: its factors would be resumed, and mean nothing here."""
    state, made_of = run.state("turbo"), run.state("turbo").with_suffix(".weights")
    weights = weights_sha256(run.models / BASE)
    if state.is_file() and (not made_of.is_file() or made_of.read_text(encoding="utf-8") != weights):
        state.unlink()
    state.parent.mkdir(parents=True, exist_ok=True)
    made_of.write_text(weights, encoding="utf-8")


def edit_set(
    run: Run, loaded: Loaded, geometry: Geometry, options: argparse.Namespace, device: torch.device
) -> EditSet:
    """The encoded pairs; kept in the run's folder, so that a later run of the same data reads them."""
    vae = loaded.pipe.vae
    stored = b"".join(path.read_bytes() for path in sorted((loaded.folder / "vae").glob("*.safetensors")))
    stored += f"{vae.config.scaling_factor} {vae.config.shift_factor}".encode()
    key = f"{code_key()}-{zlib.crc32(stored):08x}-{options.data_seed}-{options.scenes}-{options.subset}"
    path = run.folder / "data" / f"edits-{key}.pt"
    if path.is_file():
        kept = torch.load(path, map_location=device, weights_only=True)
        return EditSet(LatentSet(kept["before"], kept["captions"]), kept["after"], kept["instructions"])
    drawn = draw_edits(options.data_seed, options.scenes, options.workers, subset=options.subset)
    data = EditSet.encode(vae, drawn, loaded.pipe.tokenizer, geometry.side, device)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"before": data.before.latents, "captions": data.before.ids}
    save_whole({**tensors, "after": data.after, "instructions": data.instructions}, path)
    return data


class Pair:
    """Teacher and student, to be compiled as one: either both or none."""

    def __init__(self, *models: Any) -> None:
        self._models = models
        self.transformer_blocks = [block for model in models for block in model.transformer_blocks]
        self.single_transformer_blocks = [block for model in models for block in model.single_transformer_blocks]

    def compile_repeated_blocks(self, **options: Any) -> None:
        """As diffusers' models have it."""
        for model in self._models:
            model.compile_repeated_blocks(**options)


def parameter_count_of(state: StageState) -> int:
    """Of the factors."""
    return sum(parameter.numel() for parameter in state.modules["factors"].parameters())


def _tasks(loaded: Loaded, geometry: Geometry) -> Tasks:
    tokenizer = loaded.pipe.tokenizer
    mu = stages.shift_mu(loaded.pipe.scheduler, geometry)
    template, device = EditTemplate.of(tokenizer, geometry.side, loaded.pipe.device), loaded.pipe.device
    return Tasks(Template.of(tokenizer, device), geometry, mu, template)


def _write_both(models: Path, geometry: Geometry, pipe: Any, state: StageState, progress: dict[str, Any]) -> int:
    """The averaged weights once, and the editing checkpoint as a part; the bytes of the weights."""
    averages = (state.averages["text_encoder"].model, state.averages["transformer"].model)
    shutil.rmtree(models / TURBO, ignore_errors=True)  # a Turbo of other weights would be none
    vae, tokenizer = copy.deepcopy(pipe.vae), pipe.tokenizer
    stored = write_checkpoint(models / BASE, vae, *averages, tokenizer, pipe.scheduler, progress)
    mark_trained(models / BASE)
    write_part(models, EDIT, geometry.side, pipe.tokenizer, progress)
    return stored
