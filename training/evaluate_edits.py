"""The fixed evaluation of edits: 100 held-out pairs, edited as the pipeline edits them, judged by the checker.

``python -m training.evaluate_edits --checkpoint FOLDER`` prints the share of edits after which the picture shows
everything that the edited scene has and nothing else, with its 95 % interval, in all and by kind. No unedited picture
passes. Steps and guidance are those of the embedded models where none are given: 20 and 2.5 for Edit, 8 and 1 for
the Turbo.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fuseproof.errors import UsageError
from fuseproof.harness.atomic_files import write_bytes_atomically
from training.checker import check, met_by_overlap
from training.data import Drawings
from training.edits import Edit, draw_edit
from training.evaluate import EVALUATION_SEED, checkpoint_folder, hashes, report_of_overlaps, write_rows_and_sheet
from training.intervals import share_with_interval
from training.options import (
    device_named,
    finite_number,
    require_checkpoint,
    require_writable,
    seed,
    told,
    whole_number,
)
from training.package import NEEDED_EDITS
from training.parts import whole

STEPS = 20
SHOWN = 24

Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class JudgedEdit:
    """One edit: the pictures given and made, what the checker found wrong, and the PSNR in dB to the true one."""

    edit: Edit
    given: Picture
    made: Picture
    faults: list[str]
    psnr_db: float


@dataclass(frozen=True)
class Sampling:
    """How edits are made; the seed of each is ``seed`` and its number."""

    steps: int
    guidance: float
    seed: int


def evaluation_edits(count: int, subset: str = "all", *, held_out: bool = True) -> list[Edit]:
    """The first ``count`` of the fixed held-out edits of a subset; always the same."""
    return [draw_edit(EVALUATION_SEED, index, held_out=held_out, subset=subset) for index in range(count)]


def load(folder: Path, device: torch.device) -> tuple[Any, Any]:
    """The checkpoint as fuseproof reads it, and its diffusers pipeline in fp32."""
    from fuseproof.pipelines.checkpoints import check_checkpoint
    from fuseproof.pipelines.loading import load_pipeline

    checkpoint = check_checkpoint(folder)
    if checkpoint.family.name not in NEEDED_EDITS:
        raise UsageError(
            f"{folder} is a {checkpoint.family.name}; {' or '.join(NEEDED_EDITS)} is evaluated here.",
            next_step="python -m training.evaluate evaluates the model that draws.",
        )
    return checkpoint, load_pipeline(checkpoint, dtype=torch.float32, device=device)


def make(pipe: Any, edit: Edit, given: Picture, canvas_pixels: int, sampling: Sampling, seed: int) -> Picture:
    """The picture [S, S, 3] that diffusers' own pipeline makes of ``given``, from a seed of the CPU's generator."""
    from PIL import Image

    from fuseproof.pipelines import reference
    from fuseproof.pipelines.conditioning import ConditioningImage
    from fuseproof.pipelines.requests import GenerationRequest
    from fuseproof.pipelines.stages import StageClock

    height, width = given.shape[:2]
    request = GenerationRequest(
        prompt=edit.instruction,
        negative_prompt=None,
        width=width,
        height=height,
        num_inference_steps=sampling.steps,
        guidance_scale=sampling.guidance,
        seed=seed,
        generator_device="cpu",
        enable_cfg_renorm=False,
        cfg_renorm_min=0.0,
        enable_prompt_rewrite=False,
        quality="lossless",
        image=ConditioningImage(Image.fromarray(given), "", width, height),
        canvas_pixels=canvas_pixels,
    )
    clock = StageClock(pipe._execution_device)
    decoded = reference.generate(pipe, request, torch.Generator().manual_seed(seed), clock)
    picture: Picture = (decoded.image * 255).round().astype(np.uint8)
    return picture


def judge(pipe: Any, edits: Sequence[Edit], canvas_pixels: int, sampling: Sampling) -> Iterator[JudgedEdit]:
    """Make and check every edit."""
    side = pipe.vae.config.sample_size
    before, after = (rendered([getattr(edit, which) for edit in edits], side) for which in ("before", "after"))
    for number, (edit, given, true) in enumerate(zip(edits, before, after, strict=True)):
        made = make(pipe, edit, given, canvas_pixels, sampling, sampling.seed + number)
        error = max(float(np.square(made.astype(np.float64) - true).mean()), 1e-6)
        yield JudgedEdit(edit, given, made, check(made, edit.claims), 10 * np.log10(255**2 / error))


def rendered(scenes: Sequence[Any], side: int) -> list[Picture]:
    """The scenes as 8-bit pictures [side, side, 3]."""
    drawings = Drawings.of(scenes, torch.device("cpu"))
    pictures = ((drawings.render(torch.arange(len(drawings)), side) + 1) * 127.5).round().byte()
    return list(pictures.permute(0, 2, 3, 1).numpy())


def report(judged: Sequence[JudgedEdit]) -> str:
    """The accuracy with its interval, in all and by kind."""
    lines = [f"edits met: {share_with_interval(sum(not item.faults for item in judged), len(judged))}"]
    for kind in sorted({item.edit.kind for item in judged}):
        chosen = [item for item in judged if item.edit.kind == kind]
        lines.append(f"  {kind:10} {share_with_interval(sum(not item.faults for item in chosen), len(chosen))}")
    mean = sum(item.psnr_db for item in judged) / len(judged)
    return "\n".join([*lines, f"PSNR to the true picture {mean:.2f} dB on average"])


def write(folder: Path, name: str, judged: Sequence[JudgedEdit]) -> None:
    """``<name>.json`` with every edit and its faults, ``<name>.png`` with the first pictures, each beside its own."""
    rows = [
        {"instruction": item.edit.instruction, "faults": item.faults, "psnr_db": round(item.psnr_db, 2)}
        for item in judged
    ]
    write_rows_and_sheet(
        folder, name, rows, [picture for item in judged[:SHOWN] for picture in (item.given, item.made)]
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    from training.subsets import SUBSETS

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--checkpoint", required=True, help="a folder (a part too), or embedded:longcat-image-edit")
    options.add_argument("--edits", type=whole_number(1), default=100)
    options.add_argument("--subset", choices=tuple(SUBSETS), default="all", help="which scenes")
    options.add_argument("--seen", action="store_true", help="edits of combinations that training saw instead")
    options.add_argument("--steps", type=whole_number(1), help=f"default: {STEPS} for Edit, 8 for the Turbo")
    options.add_argument("--guidance", type=finite_number(0), help="default: 2.5 for Edit, 1 for the Turbo")
    options.add_argument("--seed", type=seed, default=0)
    options.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:NUMBER")
    options.add_argument("--output", type=Path, default=Path("build/evaluation"))
    options.add_argument("--require", action="store_true", help="exit 1 where too few edits are met to be packaged")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Print and write the evaluation; 1 where ``--require`` is not met, or a sentence says what is wrong."""
    options = parser().parse_args(arguments)
    return told(lambda: _evaluate_whole(options))


def _evaluate_whole(options: argparse.Namespace) -> int:
    device = device_named(options.device)
    stored = require_checkpoint(checkpoint_folder(options.checkpoint))
    require_writable(options.output)
    with whole(stored) as folder:
        return _evaluate(folder, options, device)


def _evaluate(folder: Path, options: argparse.Namespace, device: torch.device) -> int:
    checkpoint, pipe = load(folder, device)
    family = checkpoint.family
    sampling = Sampling(
        options.steps or min(STEPS, family.default_steps),
        family.guidance_scale(is_embedded=True) if options.guidance is None else options.guidance,
        options.seed,
    )
    started = time.monotonic()
    edits = evaluation_edits(options.edits, options.subset, held_out=not options.seen)
    judged = list(judge(pipe, edits, checkpoint.canvas_pixels, sampling))
    met = sum(not item.faults for item in judged)
    strict = met_by_overlap([item.made for item in judged], [item.edit.claims for item in judged])
    sys.stdout.write(
        f"{options.checkpoint}, {family.name}: {sampling.steps} steps, guidance {sampling.guidance}, seeds from "
        f"{sampling.seed}, {device.type}, fp32, {time.monotonic() - started:.0f} s\n{report(judged)}\n"
        f"{report_of_overlaps(strict, len(judged))}\n"
    )
    write(options.output, family.name, judged)
    summary = {
        "met": met,
        "edits": len(judged),
        "met_by_overlap": strict,
        "psnr_db": sum(item.psnr_db for item in judged) / len(judged),
        "steps": sampling.steps,
        "guidance": sampling.guidance,
        "seed": sampling.seed,
        "subset": options.subset,
        "held_out": not options.seen,
        **hashes(folder),
    }
    write_bytes_atomically(options.output / f"{family.name}-summary.json", f"{json.dumps(summary)}\n".encode())
    return 1 if options.require and met < NEEDED_EDITS[family.name] * len(judged) else 0


if __name__ == "__main__":
    sys.exit(main())
