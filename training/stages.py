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
from training.curves import write_curve
from training.data import Drawings
from training.described import Described, draw_described
from training.folders import Run, as_stored, write_checkpoint
from training.geometry import (
    GEOMETRIES,
    Geometry,
    build_scheduler,
    build_text_encoder,
    build_transformer,
    build_vae,
    image_ids,
    parameter_count,
)
from training.pace import Pace
from training.state import StageState, averaged_weights
from training.tokens import Template, build_tokenizer, padded_ids

HELD_OUT_RENDERS = 200
MEASURED_RENDERS = 512
HELD_OUT_SEED = 77


def run_stage(options: argparse.Namespace) -> str:
    """Run the stage that ``options`` name; what was done, in a few lines."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    started = time.monotonic()
    silence_libraries()
    device = torch.device(_device(options.device))
    torch.manual_seed(0)
    run, geometry = Run(options.run), GEOMETRIES[options.geometry]
    pace = Pace(options.total_seconds or options.seconds, options.seconds, options.steps, started=started)
    # Pictures of every run and stage differ, but never by the number of workers or the device.
    described = draw_described(options.data_seed, options.scenes, options.workers)
    body = {"vae": _vae, "text": _text, "transformer": _transformer}[options.stage]
    lines = body(run, geometry, described, pace, options, device)
    state = "finished" if pace.is_finished else "to be resumed"
    lines.append(f"{options.stage}: {state} after {pace.step} steps and {pace.spent_s:.0f} s in all runs")
    return "\n".join(lines)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def _chosen(settings: Any, options: argparse.Namespace) -> Any:
    """The stage's settings with what the command line says otherwise."""
    chosen = {name: value for name in ("batch", "rate") if (value := getattr(options, name)) is not None}
    return dataclasses.replace(settings, **chosen)


def _begun(state: StageState, run: Run, stage: str, pace: Pace, options: argparse.Namespace, device: Any) -> str:
    """Load what an earlier run left, where it is to be resumed; say which."""
    path = run.state(stage)
    if options.resume and path.is_file():
        # Data and models were made in this run's time, and count.
        spent = pace.run_spent_s
        state.load(path, pace, device)
        pace.started -= spent
        return f"{stage}: resumed at step {pace.step}"
    return f"{stage}: begun"


def _vae(run: Run, geometry: Geometry, described: list[Described], pace: Pace, options: Any, device: Any) -> list[str]:
    settings = _chosen(vae_stage.VaeSettings(), options)
    vae = build_vae(geometry).to(device)
    state = vae_stage.new_state(vae, settings, device)
    lines = [f"vae: {parameter_count(vae)} parameters", _begun(state, run, "vae", pace, options, device)]
    drawings = Drawings.of([item.scene for item in described], device)

    def save() -> None:
        _keep(run, "vae", state, pace)

    vae_stage.train_vae(state, drawings, geometry.side, pace, settings, save)
    save()
    lines.append(_throughput(state, settings.batch))
    lines += _finish_vae(run, geometry, drawings, device)
    return lines


def _finish_vae(run: Run, geometry: Geometry, drawings: Drawings, device: Any) -> list[str]:
    """Store the averaged VAE in bf16 with its latents' measured scale and shift, and measure what it loses."""
    vae = build_vae(geometry).to(device)
    vae.load_state_dict(averaged_weights(run.state("vae"), "vae", device))
    as_stored(vae).float()
    few = Drawings(drawings.backgrounds[:MEASURED_RENDERS], drawings.things[:MEASURED_RENDERS])
    scale, shift = vae_stage.measure_latents(vae, few, geometry.side, 32)
    vae.register_to_config(scaling_factor=round(scale, 5), shift_factor=round(shift, 5))
    unseen = Drawings.of(
        [item.scene for item in draw_described(HELD_OUT_SEED, HELD_OUT_RENDERS, 1, held_out=True)], device
    )
    psnr = vae_stage.reconstruction_psnr(vae, unseen, geometry.side, 32)
    as_stored(vae).save_pretrained(run.vae)
    mean, worst = sum(psnr) / len(psnr), min(psnr)
    return [
        f"vae: scaling_factor {scale:.5f}, shift_factor {shift:.5f}",
        f"vae: PSNR of {len(psnr)} held-out renders {mean:.2f} dB on average, {worst:.2f} dB at worst",
    ]


def stored_vae(run: Run, device: Any) -> Any:
    """The VAE that the first stage left, in fp32 arithmetic."""
    from diffusers import AutoencoderKL

    return AutoencoderKL.from_pretrained(run.vae, dtype=torch.float32).to(device).eval()


def _text(run: Run, geometry: Geometry, described: list[Described], pace: Pace, options: Any, device: Any) -> list[str]:
    settings = _chosen(text_stage.TextSettings(), options)
    tokenizer = build_tokenizer()
    text_encoder = build_text_encoder(geometry, tokenizer).to(device)
    state = text_stage.new_state(text_encoder, settings, device)
    lines = [_begun(state, run, "text", pace, options, device)]
    prompts = text_stage.Prompts.of(described, tokenizer, device)
    text_stage.train_text(state, prompts, Template.of(tokenizer), pace, settings)
    _keep(run, "text", state, pace)
    return [*lines, _throughput(state, settings.batch), _last(state, "text")]


def _transformer(
    run: Run, geometry: Geometry, described: list[Described], pace: Pace, options: Any, device: Any
) -> list[str]:
    settings = _chosen(flow_stage.FlowSettings(), options)
    tokenizer, scheduler = build_tokenizer(), build_scheduler()
    template, mu = Template.of(tokenizer), shift_mu(scheduler, geometry)
    text_encoder = build_text_encoder(geometry, tokenizer).to(device)
    transformer = build_transformer(geometry).to(device)
    lines = [_first_weights(run, text_encoder, transformer, pace, options, device)]
    state = flow_stage.new_state(transformer, text_encoder, settings, device)
    lines.append(_begun(state, run, "transformer", pace, options, device))
    vae = stored_vae(run, device)
    data = _latent_set(run, vae, described, tokenizer, geometry, options, device)
    lines.append(f"transformer: {len(described)} pictures; {pace.run_spent_s:.1f} s before the first step")
    lines += _compiled(state, data, geometry, template, mu, settings, options)

    def save() -> None:
        _keep(run, "transformer", state, pace)

    flow_stage.train_flow(state, data, geometry, template, mu, pace, settings, save)
    save()
    averages = (state.averages["text_encoder"].model, state.averages["transformer"].model)
    stored = write_checkpoint(run.checkpoint, vae, *averages, tokenizer, scheduler)
    progress = {"step": pace.step, "spent_s": round(pace.spent_s, 1), "share": round(pace.share, 4)}
    (run.checkpoint / "training.json").write_text(json.dumps(progress) + "\n", encoding="utf-8")
    lines += [_throughput(state, settings.batch), _last(state, "transformer")]
    return [*lines, f"{run.checkpoint}: {stored / 1e6:.2f} MB of weights"]


def _first_weights(run: Run, text_encoder: Any, transformer: Any, pace: Pace, options: Any, device: Any) -> str:
    """The text stage's weights; or, where the states are lost, those of a checkpoint that came back."""
    if options.begin_from is None:
        text_encoder.load_state_dict(averaged_weights(run.state("text"), "text_encoder", device))
        return "transformer: text encoder of the text stage"
    from diffusers import LongCatImagePipeline

    pipe = LongCatImagePipeline.from_pretrained(options.begin_from, dtype=torch.float32, text_processor=None)
    text_encoder.load_state_dict(pipe.text_encoder.state_dict())
    transformer.load_state_dict(pipe.transformer.state_dict())
    pipe.vae.save_pretrained(run.vae)
    progress = json.loads((options.begin_from / "training.json").read_text(encoding="utf-8"))
    pace.step, pace.spent_before_s = progress["step"], progress["spent_s"]
    return f"transformer: weights of {options.begin_from}, left at step {pace.step}; a fresh optimizer"


def _latent_set(
    run: Run, vae: Any, described: list[Described], tokenizer: Any, geometry: Geometry, options: Any, device: Any
) -> flow_stage.LatentSet:
    """The encoded pictures; kept in the run's folder, so that a later run of the same data reads them."""
    stored = b"".join(path.read_bytes() for path in sorted(run.vae.glob("*")))
    key = f"{zlib.crc32(stored):08x}-{options.data_seed}-{options.scenes}"
    path = run.folder / "data" / f"latents-{key}.pt"
    if path.is_file():
        kept = torch.load(path, map_location=device, weights_only=True)
        return flow_stage.LatentSet(kept["latents"], kept["ids"])
    drawings = Drawings.of([item.scene for item in described], device)
    ids = padded_ids(tokenizer, [caption.text for item in described for caption in item.captions]).to(device)
    data = flow_stage.LatentSet.encode(vae, drawings, ids, geometry.side)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"latents": data.latents, "ids": data.ids}, path)
    return data


def _compiled(
    state: StageState, data: Any, geometry: Geometry, template: Template, mu: float, settings: Any, options: Any
) -> list[str]:
    """Compile the transformer's blocks and run a step that changes nothing; say where that fails, and go on eagerly."""
    transformer, device = state.modules["transformer"], data.latents.device
    if not (options.compile if options.compile is not None else device.type == "cuda"):
        return []
    transformer.compile_repeated_blocks(dynamic=False)
    started = time.monotonic()
    rows = torch.arange(settings.batch, device=device) % len(data.latents)
    try:
        batch = flow_stage.draw_batch(data, rows, 0, mu, settings, full_text=False)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            ids = image_ids(geometry).to(device)
            losses = flow_stage.flow_losses(transformer, state.modules["text_encoder"], batch, template, ids)
        losses.mean().backward()
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ImportError, AttributeError, TypeError, AssertionError) as error:
        torch._dynamo.reset()
        for block in [*transformer.transformer_blocks, *transformer.single_transformer_blocks]:
            block._compiled_call_impl = None
        return [f"NOT COMPILED, slower: {type(error).__name__}: {' '.join(str(error).split())[:200]}"]
    finally:
        state.optimizer.zero_grad(set_to_none=True)
    return [f"compiled in {time.monotonic() - started:.1f} s"]


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


def _keep(run: Run, stage: str, state: StageState, pace: Pace) -> None:
    """Save state and curve, and say on stderr how far the stage is."""
    state.save(run.state(stage), pace)
    write_curve(run.curves, stage, state.curve)
    sys.stderr.write(f"{stage}: step {pace.step}, {pace.spent_s:.0f} s in all; {_last(state, stage)}\n")


def _throughput(state: StageState, batch: int) -> str:
    """Samples a second between the last points of the curve, of one run."""
    points = state.curve[-12:]
    if len(points) < 2 or points[-1].seconds <= points[0].seconds:
        return "too short to tell a throughput"
    rate = (points[-1].step - points[0].step) / (points[-1].seconds - points[0].seconds)
    return f"{rate:.2f} steps/s, {rate * batch:.0f} samples/s at the end"


def _last(state: StageState, stage: str) -> str:
    if not state.curve:
        return f"{stage}: no step was logged"
    return f"{stage}: last " + ", ".join(f"{name} {value:.4f}" for name, value in state.curve[-1].losses.items())
