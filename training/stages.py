"""From the command line's options to a stage: data, models, state, the loop, what it leaves behind."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import zlib
from typing import Any

import torch

from fuseproof.pipelines.libraries import silence_libraries
from training import flow_stage, text_stage, vae_stage
from training.checker import check
from training.compiling import Compiled, Prepare, Rehearsal
from training.curves import write_curve
from training.data import Drawings
from training.dataset import code_key, prepared
from training.described import draw_described, draw_scenes
from training.folders import Run, as_stored, replacing, write_checkpoint
from training.geometry import (
    GEOMETRIES,
    Geometry,
    build_scheduler,
    build_text_encoder,
    build_transformer,
    build_vae,
    parameter_count,
)
from training.gradients import LossesOf, Step, step_of, total_of
from training.pace import Pace
from training.parts import TRAINING
from training.replaying import Replayed
from training.state import DivergedError, StageState, averaged_weights, save_whole
from training.tokens import Template, build_tokenizer

HELD_OUT_RENDERS = 200
MEASURED_RENDERS = 512
HELD_OUT_SEED = 77


def run_stage(options: argparse.Namespace) -> str:
    """Run the stage that ``options`` name; what was done, in a few lines."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 4  # of 10: every shape of the VAE tries them forwards and backwards
    # cuDNN's attention is torch's first choice on Hopper, and its backward can give NaN (pytorch/pytorch#196678).
    torch.backends.cuda.enable_cudnn_sdp(False)
    started = time.monotonic()
    silence_libraries()
    device = torch.device(_device(options.device))
    torch.manual_seed(0)
    run, geometry = Run(options.run), GEOMETRIES[options.geometry]
    pace = Pace(options.total_seconds or options.seconds, options.seconds, options.steps, started=started)
    if options.stage == "data":
        return f"data: {len(prepared(run, options, torch.device('cpu')).drawings)} scenes"
    if options.stage in ("edit", "turbo"):
        return _closed(_of_both_tasks(run, geometry, pace, options, device), pace, options)
    body = {"vae": _vae, "text": _text, "transformer": _transformer}[options.stage]
    return _closed(body(run, geometry, pace, options, device), pace, options)


def _closed(lines: list[str], pace: Pace, options: argparse.Namespace) -> str:
    """What was done, with where the stage stands."""
    state = "finished" if pace.is_finished else "to be resumed"
    return "\n".join([*lines, f"{options.stage}: {state} after {pace.step} steps and {pace.spent_s:.0f} s in all runs"])


def _of_both_tasks(run: Run, geometry: Geometry, pace: Pace, options: Any, device: Any) -> list[str]:
    from training import edit_stages

    body = {"edit": edit_stages.run_edit, "turbo": edit_stages.run_turbo}[options.stage]
    return body(run, geometry, pace, options, device)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def chosen(settings: Any, options: argparse.Namespace) -> Any:
    """The stage's settings with what the command line says otherwise."""
    said = {name: value for name in ("batch", "rate") if (value := getattr(options, name)) is not None}
    return dataclasses.replace(settings, **said)


def begun(state: StageState, run: Run, stage: str, pace: Pace, options: argparse.Namespace, device: Any) -> str:
    """Load what an earlier run left, where it is to be resumed; say which."""
    path = run.state(stage)
    if options.resume and path.is_file():
        # Data and models were made in this run's time, and count.
        spent = pace.run_spent_s
        state.load(path, pace, device)
        pace.started -= spent
        return f"{stage}: resumed at step {pace.step}"
    return f"{stage}: begun"


def _vae(run: Run, geometry: Geometry, pace: Pace, options: Any, device: Any) -> list[str]:
    settings = chosen(vae_stage.VaeSettings(), options)
    vae = build_vae(geometry).to(device)
    state = vae_stage.new_state(vae, settings, device)
    lines = [f"vae: {parameter_count(vae)} parameters", begun(state, run, "vae", pace, options, device)]
    scenes = draw_scenes(options.data_seed, options.scenes, options.workers, subset=options.subset)
    drawings = Drawings.of(scenes, device)

    def save() -> None:
        keep(run, "vae", state, pace)

    vae_stage.train_vae(state, drawings, geometry.side, pace, settings, save)
    save()
    lines.append(throughput(state, settings.batch))
    lines += _finish_vae(run, geometry, drawings, options, device)
    return lines


def _finish_vae(run: Run, geometry: Geometry, drawings: Drawings, options: Any, device: Any) -> list[str]:
    """Store the averaged VAE in bf16 with its latents' measured scale and shift, and measure what it loses."""
    vae = build_vae(geometry).to(device)
    vae.load_state_dict(averaged_weights(run.state("vae"), "vae", device))
    as_stored(vae).float()
    few = Drawings(drawings.backgrounds[:MEASURED_RENDERS], drawings.things[:MEASURED_RENDERS])
    scale, shift = vae_stage.measure_latents(vae, few, geometry.side, 32)
    vae.register_to_config(scaling_factor=round(scale, 5), shift_factor=round(shift, 5))
    unseen = draw_described(HELD_OUT_SEED, HELD_OUT_RENDERS, 1, held_out=True, subset=options.subset)
    pictures, psnr = vae_stage.reconstructed(
        vae, Drawings.of([item.scene for item in unseen], device), geometry.side, 32
    )
    with replacing(run.vae) as new:
        as_stored(vae).save_pretrained(new)
    mean, worst = sum(psnr) / len(psnr), min(psnr)
    met = sum(not check(picture, item.captions[0].claims) for picture, item in zip(pictures, unseen, strict=True))
    return [
        f"vae: scaling_factor {scale:.5f}, shift_factor {shift:.5f}",
        f"vae: PSNR of {len(psnr)} held-out renders {mean:.2f} dB on average, {worst:.2f} dB at worst",
        f"vae: {met} of {len(psnr)} reconstructions still show what their caption says: no transformer can do better",
    ]


def stored_vae(run: Run, device: Any) -> Any:
    """The VAE that the first stage left, in fp32 arithmetic."""
    from diffusers import AutoencoderKL

    return AutoencoderKL.from_pretrained(run.vae, dtype=torch.float32).to(device).eval()


def _text(run: Run, geometry: Geometry, pace: Pace, options: Any, device: Any) -> list[str]:
    settings = chosen(text_stage.TextSettings(), options)
    tokenizer = build_tokenizer()
    text_encoder = build_text_encoder(geometry, tokenizer).to(device)
    state = text_stage.new_state(text_encoder, settings, device)
    lines = [begun(state, run, "text", pace, options, device)]
    prompts = prepared(run, options, device).prompts
    text_stage.train_text(state, prompts, Template.of(tokenizer, device), pace, settings)
    keep(run, "text", state, pace)
    return [*lines, throughput(state, settings.batch), last(state, "text")]


def _transformer(run: Run, geometry: Geometry, pace: Pace, options: Any, device: Any) -> list[str]:
    settings = chosen(flow_stage.FlowSettings(), options)
    tokenizer, scheduler = build_tokenizer(), build_scheduler()
    task = flow_stage.Task(Template.of(tokenizer, device), geometry, shift_mu(scheduler, geometry))
    text_encoder = build_text_encoder(geometry, tokenizer).to(device)
    transformer = build_transformer(geometry).to(device)
    lines = [_first_weights(run, text_encoder, transformer, pace, options, device)]
    replay = is_wanted(options.replay, device)
    state = flow_stage.new_state(transformer, text_encoder, settings, device, replay=replay)
    lines.append(begun(state, run, "transformer", pace, options, device))
    vae = stored_vae(run, device)
    data = _latent_set(run, vae, geometry, options, device)
    lines.append(f"transformer: {len(data.latents)} pictures; {pace.run_spent_s:.1f} s before the first step")
    rows = torch.arange(settings.batch, device=device) % len(data.latents)
    losses_of = flow_stage.losses_of(state, task)

    def rehearse(full_text: bool) -> torch.Tensor:
        batch = flow_stage.draw_batch(data, rows, 0, task.mu, settings, full_text=full_text)
        return total_of(losses_of(batch))

    prepare = compiler(transformer, state, rehearse, options, device)
    step = step_on(device, losses_of, state, options)

    def save() -> None:
        keep(run, "transformer", state, pace)

    try:
        flow_stage.train_flow(state, data, task, pace, settings, save, prepare, step)
        save()
    except DivergedError:
        if run.state("transformer").is_file():
            state.load(run.state("transformer"), pace, device)
            sys.stderr.write(f"{_checkpoint(run, state, vae, pace)}, as they were at step {pace.step}\n")
        raise
    lines += [throughput(state, settings.batch), last(state, "transformer")]
    return [*lines, _checkpoint(run, state, vae, pace)]


def _checkpoint(run: Run, state: StageState, vae: Any, pace: Pace) -> str:
    """Write the averaged models as a checkpoint; a sentence with its size. The models are in bf16 afterwards."""
    averages = (state.averages["text_encoder"].model, state.averages["transformer"].model)
    progress = {"step": pace.step, "spent_s": round(pace.spent_s, 1), "share": round(pace.share, 4)}
    stored = write_checkpoint(run.checkpoint, vae, *averages, build_tokenizer(), build_scheduler(), progress)
    return f"{run.checkpoint}: {stored / 1e6:.2f} MB of weights"


def _first_weights(run: Run, text_encoder: Any, transformer: Any, pace: Pace, options: Any, device: Any) -> str:
    """The text stage's weights; or, where the states are lost, those of a checkpoint that came back."""
    if options.begin_from is not None and options.resume and run.state("transformer").is_file():
        return f"transformer: {options.begin_from} is left out: {run.state('transformer')} goes on where it stopped"
    if options.begin_from is None:
        text_encoder.load_state_dict(averaged_weights(run.state("text"), "text_encoder", device))
        return "transformer: text encoder of the text stage"
    from diffusers import LongCatImagePipeline

    pipe = LongCatImagePipeline.from_pretrained(options.begin_from, dtype=torch.float32, text_processor=None)
    text_encoder.load_state_dict(pipe.text_encoder.state_dict())
    transformer.load_state_dict(pipe.transformer.state_dict())
    with replacing(run.vae) as new:
        pipe.vae.save_pretrained(new)
    progress = json.loads((options.begin_from / TRAINING).read_text(encoding="utf-8"))
    pace.step = pace.optimizer_began_at = progress["step"]
    pace.spent_before_s = progress["spent_s"]
    return f"transformer: weights of {options.begin_from}, left at step {pace.step}; a fresh optimizer"


def _latent_set(run: Run, vae: Any, geometry: Geometry, options: Any, device: Any) -> flow_stage.LatentSet:
    """The encoded pictures; kept in the run's folder, so that a later run of the same data reads them."""
    stored = b"".join(path.read_bytes() for path in sorted(run.vae.glob("*")))
    key = f"{code_key()}-{zlib.crc32(stored):08x}-{options.data_seed}-{options.scenes}-{options.subset}"
    path = run.folder / "data" / f"latents-{key}.pt"
    if path.is_file():
        kept = torch.load(path, map_location=device, weights_only=True)
        return flow_stage.LatentSet(kept["latents"], kept["ids"])
    drawn = prepared(run, options, device)
    data = flow_stage.LatentSet.encode(vae, drawn.drawings, drawn.prompts.ids, geometry.side)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_whole({"latents": data.latents, "ids": data.ids}, path)
    return data


def compiler(model: Any, state: StageState, rehearse: Rehearsal, options: argparse.Namespace, device: Any) -> Prepare:
    """What compiles the blocks of ``model`` before the first step of each number of text tokens, where wanted."""
    return Compiled(model, state, rehearse) if is_wanted(options.compile, device) else lambda _full_text: None


def step_on(device: torch.device, losses_of: LossesOf, state: StageState, options: argparse.Namespace) -> Step:
    """What runs forward and backward of a step: replayed as a CUDA graph where wanted."""
    if not is_wanted(options.replay, device):
        return step_of(losses_of)
    weights = [weight for module in state.modules.values() for weight in module.parameters() if weight.requires_grad]
    return Replayed(losses_of, weights)


def is_wanted(said: bool | None, device: torch.device) -> bool:
    """What only a GPU gains by, unless the command line says otherwise."""
    return said if said is not None else device.type == "cuda"


def shift_mu(scheduler: Any, geometry: Geometry) -> float:
    """By how much the pipeline shifts the schedule of such pictures."""
    from diffusers.pipelines.longcat_image.pipeline_longcat_image import calculate_shift

    config = scheduler.config
    mu: float = calculate_shift(
        geometry.image_tokens,
        config.base_image_seq_len,
        config.max_image_seq_len,
        config.base_shift,
        config.max_shift,
    )
    return mu


def keep(run: Run, stage: str, state: StageState, pace: Pace) -> None:
    """Save state and curve, and say on stderr how far the stage is."""
    state.save(run.state(stage), pace)
    write_curve(run.curves, stage, state.curve)
    sys.stderr.write(f"{stage}: step {pace.step}, {pace.spent_s:.0f} s in all; {last(state, stage)}\n")


def throughput(state: StageState, batch: int) -> str:
    """Samples a second between the last points of the curve, of one run."""
    points = state.curve[-12:]
    if len(points) < 2 or points[-1].seconds <= points[0].seconds:
        return "too short to tell a throughput"
    rate = (points[-1].step - points[0].step) / (points[-1].seconds - points[0].seconds)
    return f"{rate:.2f} steps/s, {rate * batch:.0f} samples/s at the end"


def last(state: StageState, stage: str) -> str:
    if not state.curve:
        return f"{stage}: no step was logged"
    return f"{stage}: last " + ", ".join(f"{name} {value:.4f}" for name, value in state.curve[-1].losses.items())
