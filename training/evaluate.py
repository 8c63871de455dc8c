"""The fixed evaluation: 200 held-out prompts, drawn as the pipeline draws them, judged by the checker.

``python -m training.evaluate`` (``make eval-embedded``) prints the share of prompts that are met with its 95 % interval
and the VAE's PSNR on held-out renders, and writes every prompt with what was wrong with its picture.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fuseproof.errors import UsageError
from fuseproof.harness.atomic_files import write_bytes_atomically
from training.captions import Caption, describe
from training.checker import check, met_by_overlap
from training.data import Drawings
from training.described import draw_described
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
from training.package import NEEDED_ACCURACY, NEEDED_PSNR_DB, checkpoint_sha256, weights_sha256
from training.parts import BASE
from training.scenes import draw_scene
from training.subsets import SUBSETS
from training.vae_stage import reconstructed

EVALUATION_SEED = 4242
EMBEDDED = "embedded:longcat-image"
GRID_COLUMNS = 8

Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class Judged:
    """One prompt, its picture, and what the checker found wrong."""

    caption: Caption
    picture: Picture
    faults: list[str]


def evaluation_captions(count: int, subset: str = "all", *, held_out: bool = True) -> list[Caption]:
    """The first ``count`` of the fixed held-out prompts of a subset; always the same."""
    captions = []
    for index in range(count):
        scene = draw_scene(EVALUATION_SEED, index, held_out=held_out, belongs=SUBSETS[subset])
        captions.append(describe(scene, Random(f"{EVALUATION_SEED}/{index}/caption")))
    return captions


def load(folder: Path, device: torch.device) -> Any:
    """The checkpoint's own diffusers pipeline in fp32, without a text processor.

    A FuseproofError names what is wrong with the folder before any weight is read.
    """
    from fuseproof.pipelines.checkpoints import check_checkpoint
    from fuseproof.pipelines.libraries import silence_libraries

    silence_libraries()
    family = check_checkpoint(folder).family.name
    if family != BASE:
        raise UsageError(
            f"{folder} is a {family}; a {BASE} is evaluated here.",
            next_step="python -m training.evaluate_edits evaluates the models that edit.",
        )
    from diffusers import LongCatImagePipeline

    pipe = LongCatImagePipeline.from_pretrained(folder, dtype=torch.float32, text_processor=None)
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(device)


def draw(
    pipe: Any, texts: Sequence[str], *, steps: int, guidance: float, first_seed: int, batch: int
) -> Iterator[Picture]:
    """A picture [S, S, 3] of each text, each from a seed of its own on the CPU's generator."""
    side = pipe.vae.config.sample_size
    for start in range(0, len(texts), batch):
        chosen = list(texts[start : start + batch])
        generators = [torch.Generator().manual_seed(first_seed + start + number) for number in range(len(chosen))]
        pictures = pipe(
            chosen,
            negative_prompt=[""] * len(chosen),
            height=side,
            width=side,
            num_inference_steps=steps,
            guidance_scale=guidance,
            generator=generators,
            output_type="np",
            enable_prompt_rewrite=False,
        ).images
        yield from (pictures * 255).round().astype(np.uint8)


def judge(
    pipe: Any, captions: Sequence[Caption], *, steps: int, guidance: float, seed: int, batch: int
) -> list[Judged]:
    """Draw and check every caption."""
    texts = [caption.text for caption in captions]
    pictures = draw(pipe, texts, steps=steps, guidance=guidance, first_seed=seed, batch=batch)
    return [
        Judged(caption, picture, check(picture, caption.claims))
        for caption, picture in zip(captions, pictures, strict=True)
    ]


def psnr_of_vae(vae: Any, count: int, device: torch.device, subset: str = "all") -> list[float]:
    """PSNR in dB of the VAE on held-out renders of a subset."""
    scenes = [item.scene for item in draw_described(EVALUATION_SEED, count, 1, held_out=True, subset=subset)]
    side: int = vae.config.sample_size
    return reconstructed(vae, Drawings.of(scenes, device), side, 16)[1]


def grid(pictures: Sequence[Picture]) -> Picture:
    """The pictures in rows of eight; white where there is none."""
    side = pictures[0].shape[0]
    rows = -(-len(pictures) // GRID_COLUMNS)
    columns = min(GRID_COLUMNS, len(pictures))
    sheet = np.full((rows * side, columns * side, 3), 255, dtype=np.uint8)
    for number, picture in enumerate(pictures):
        top, left = side * (number // GRID_COLUMNS), side * (number % GRID_COLUMNS)
        sheet[top : top + side, left : left + side] = picture
    return sheet


def report(judged: Sequence[Judged]) -> str:
    """The accuracy with its interval, in all and by relation."""
    lines = [f"prompts met: {share_with_interval(sum(not item.faults for item in judged), len(judged))}"]
    for relation in sorted({item.caption.claims.relation for item in judged}):
        chosen = [item for item in judged if item.caption.claims.relation == relation]
        lines.append(f"  {relation:7} {share_with_interval(sum(not item.faults for item in chosen), len(chosen))}")
    return "\n".join(lines)


def report_of_overlaps(met: Mapping[str, int], count: int) -> str:
    """How many are met by how strict the checker is about outlines, in one line."""
    counts = ", ".join(f"{number} at {least}" for least, number in met.items())
    return f"by how much an outline must overlap: {counts}, of {count}"


def write(folder: Path, name: str, judged: Sequence[Judged]) -> None:
    """``<name>.json`` with every prompt and its faults, ``<name>.png`` with the first 64 pictures."""
    rows = [{"prompt": item.caption.text, "faults": item.faults} for item in judged]
    write_rows_and_sheet(folder, name, rows, [item.picture for item in judged[:64]])


def write_rows_and_sheet(folder: Path, name: str, rows: Any, pictures: Sequence[Picture]) -> None:
    """``<name>.json`` and, of the pictures, ``<name>.png``; each whole, or the one that lay there before."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(folder / f"{name}.json", f"{json.dumps(rows, indent=1)}\n".encode())
    content = io.BytesIO()
    Image.fromarray(grid(pictures)).save(content, "PNG")
    write_bytes_atomically(folder / f"{name}.png", content.getvalue())


def hashes(folder: Path) -> dict[str, str]:
    """What a summary says of the whole checkpoint that was judged; ``training.package`` compares it."""
    return {"weights_sha256": weights_sha256(folder), "checkpoint_sha256": checkpoint_sha256(folder)}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.add_argument("--checkpoint", default=EMBEDDED, help="a folder, or embedded:longcat-image")
    options.add_argument(
        "--prompts", type=whole_number(1), default=200, help="how many of the fixed prompts, from the first on"
    )
    simple = "which scenes; simple: one plain thing of four shapes and four colours"
    options.add_argument("--subset", choices=tuple(SUBSETS), default="all", help=simple)
    options.add_argument("--seen", action="store_true", help="prompts of combinations that training saw instead")
    options.add_argument("--renders", type=whole_number(1), default=100, help="held-out renders for the VAE")
    options.add_argument("--steps", type=whole_number(1), default=20, help="of denoising")
    options.add_argument(
        "--guidance", type=finite_number(0), nargs="+", default=[4.5], help="one or more; the last one decides"
    )
    options.add_argument("--seed", type=seed, default=0, help="of the first prompt; the others count from it")
    options.add_argument("--batch", type=whole_number(1), help="prompts at a time; None: 50 on CUDA, 1 elsewhere")
    options.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:NUMBER")
    options.add_argument("--output", type=Path, default=Path("build/evaluation"), help="folder of the results")
    options.add_argument("--require", action="store_true", help="exit 1 below 85 %% or 28 dB")
    return options


def checkpoint_folder(name: str) -> Path:
    """A folder as it is; ``embedded:...`` by fuseproof's own resolver."""
    if not name.startswith("embedded:"):
        return Path(name)
    from fuseproof.pipelines.embedded import resolve_model

    return resolve_model(name, None).folder


def main(arguments: list[str] | None = None) -> int:
    """Print and write the evaluation; 1 where ``--require`` is not met, or a sentence says what is wrong."""
    options = parser().parse_args(arguments)
    return told(lambda: _evaluate(options))


def _evaluate(options: argparse.Namespace) -> int:
    device = device_named(options.device)
    batch = options.batch or (50 if device.type == "cuda" else 1)
    folder = require_checkpoint(checkpoint_folder(options.checkpoint))
    require_writable(options.output)
    pipe = load(folder, device)
    judged_hashes = hashes(folder)
    psnr = psnr_of_vae(pipe.vae, options.renders, device, options.subset)
    mean_psnr = sum(psnr) / len(psnr)
    sys.stdout.write(
        f"{options.checkpoint}, {options.steps} steps, seeds from {options.seed}, {device.type}, fp32\n"
        f"VAE on {len(psnr)} held-out renders: PSNR {mean_psnr:.2f} dB on average, {min(psnr):.2f} dB at worst\n"
    )
    summary: dict[str, Any] = {}
    for guidance in options.guidance:
        started = time.monotonic()
        captions = evaluation_captions(options.prompts, options.subset, held_out=not options.seen)
        judged = judge(pipe, captions, steps=options.steps, guidance=guidance, seed=options.seed, batch=batch)
        met = sum(not item.faults for item in judged)
        sampling = {"steps": options.steps, "guidance": guidance, "seed": options.seed}
        strict = met_by_overlap([item.picture for item in judged], [item.caption.claims for item in judged])
        summary = {"met": met, "prompts": len(judged), "psnr_db": mean_psnr, "met_by_overlap": strict, **sampling}
        summary |= {"subset": options.subset, "held_out": not options.seen, **judged_hashes}
        sys.stdout.write(
            f"guidance {guidance}, {time.monotonic() - started:.0f} s: {report(judged)}\n"
            f"{report_of_overlaps(strict, len(judged))}\n"
        )
        write(options.output, f"guidance-{guidance}", judged)
    write_bytes_atomically(options.output / "summary.json", f"{json.dumps(summary)}\n".encode())
    is_enough = summary["met"] >= NEEDED_ACCURACY * summary["prompts"] and mean_psnr >= NEEDED_PSNR_DB
    return 1 if options.require and not is_enough else 0


if __name__ == "__main__":
    sys.exit(main())
