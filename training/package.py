"""``python -m training.package``: puts trained checkpoints into the package, with their model cards.

One checkpoint, or all three: Edit shares the weights of LongCat-Image, the Turbo has a low-rank difference from them.
Refuses what the evaluations did not accept, what they did not judge, and more than a package may hold. Nothing calls it
by itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.folders import LARGEST_PACKAGE_BYTES
from training.intervals import share_with_interval
from training.parts import BASE, EDIT, NAMES, TRAINING, TURBO, mark_trained, seal_part, weight_bytes, whole

NEEDED_PROMPTS = 200
NEEDED_ACCURACY = 0.85
NEEDED_PSNR_DB = 28.0
NEEDED_EDIT_COUNT = 100
NEEDED_EDITS = {EDIT: 0.80, TURBO: 0.70}
"""The share of edits that must be met; our own bar, as the accuracy of drawing is."""
DESTINATION = Path(__file__).resolve().parents[1] / "pipelines" / "embedded_models"

CARD = """# The embedded LongCat-Image

A LongCat-Image in its own classes and file layout, made small enough to come with fuseproof: {parameters} parameters,
{megabytes:.1f} MB in bfloat16. It draws one to three flat shapes on a plain background, at 256 x 256.

- **Data**: renders and captions of `training/`, drawn by our own code from seeds. No pictures or texts of anybody else.
- **Trained** by the stages of `training/`, {steps} steps of the transformer.
- **Evaluation**: {accuracy} of the fixed held-out prompts{of_subset} are met, judged by rules on pixels
  (`training/checker.py`), at {sampling}; held-out renders come through the VAE at {psnr:.1f} dB PSNR.
  `make eval-embedded` does it again.
- **Limits**: English captions in the words of `training/captions.py`; twelve colours, seven shapes, ten letters, three
  patterns. Anything else is drawn as something of these. It shows what the code does, not what LongCat-Image can draw.
- **Licence**: Apache-2.0, as fuseproof.
"""

EDIT_CARD = """# The embedded {title}

{what} It edits pictures of one to three flat shapes on a plain background, at 256 x 256:
another colour, shape, pattern or background, or one thing less.

- **Data**: pairs of renders and instructions of `training/`, drawn by our own code from seeds.
- **Trained** by `training/run_on_gpu.sh`, {steps} steps {on}.
- **Evaluation**: {accuracy} of the fixed held-out edits{of_subset} are met, judged by rules on pixels
  (`training/checker.py`), at {sampling}; the edited pictures are at {psnr:.1f} dB PSNR from the true ones on average.
  `python -m training.evaluate_edits --checkpoint embedded:{name}` does it again.
- **Limits**: instructions in the words of `training/edits.py`. The text encoder sees zeros for the picture: what is in
  it the transformer sees by its latents alone. Other pictures come out as something of these shapes and colours.
- **Licence**: Apache-2.0, as fuseproof.
"""

ABOUT = {
    EDIT: (
        "LongCat-Image-Edit",
        "The weights of the embedded LongCat-Image, which was trained on both tasks: nothing is stored twice.",
        "on drawing and editing together",
    ),
    TURBO: (
        "LongCat-Image-Edit-Turbo",
        "The embedded LongCat-Image-Edit, distilled to 8 steps without guidance: a difference of low rank, added "
        "to its transformer when the checkpoint is put together.",
        "of eight updates, against the guided editing model at four times the steps",
    ),
}


def weights_sha256(checkpoint: Path) -> str:
    """One hash over every weight file of a whole checkpoint: what an evaluation judged, and what is packaged."""
    digest = hashlib.sha256()
    for path in sorted(checkpoint.rglob("*.safetensors")):
        digest.update(path.relative_to(checkpoint).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def reasons_against(name: str, result: Mapping[str, Any]) -> list[str]:
    """Why a checkpoint with this evaluation (its summary) may not be packaged; empty where it may."""
    counted = "prompts" if name == BASE else "edits"
    least, share = (NEEDED_PROMPTS, NEEDED_ACCURACY) if name == BASE else (NEEDED_EDIT_COUNT, NEEDED_EDITS[name])
    reasons = []
    accuracy = result["met"] / result[counted]
    if result[counted] < least:
        reasons.append(f"{result[counted]} {counted} were drawn, {least} are needed")
    if not result.get("held_out", True):
        reasons.append(f"the {counted} were not held out")
    if accuracy < share:
        reasons.append(f"{100 * accuracy:.1f} % of the {counted} are met, {100 * share:.0f} % are needed")
    if name == BASE and result["psnr_db"] < NEEDED_PSNR_DB:
        reasons.append(f"the VAE's PSNR is {result['psnr_db']:.1f} dB, {NEEDED_PSNR_DB:.0f} dB are needed")
    return reasons


def reasons_against_all(models: Path, results: Mapping[str, Mapping[str, Any]], subset: str) -> list[str]:
    """Why the checkpoints that ``results`` names, all in ``models``, may not be packaged together."""
    reasons = []
    for name, result in results.items():
        about = "" if name == BASE else f"{name}: "
        reasons += [about + reason for reason in reasons_against(name, result)]
        if result.get("subset", "all") != subset:
            reasons.append(f"{about}the evaluation drew the scenes {result['subset']!r}, not {subset!r}")
        with whole(models / name) as checkpoint:
            found = weights_sha256(checkpoint)
        judged = result.get("weights_sha256", "unnamed")
        if found != judged:
            reasons.append(f"{about}the evaluation judged weights {judged[:12]}, not {found[:12]}")
    stored = weight_bytes(models, tuple(results))
    if stored > LARGEST_PACKAGE_BYTES:
        reasons.append(f"the weights are {stored} bytes, {LARGEST_PACKAGE_BYTES} are the most")
    return reasons


def package(
    models: Path, results: Mapping[str, Mapping[str, Any]], destination: Path, subset: str = "all"
) -> list[str]:
    """Copy the checkpoints that ``results`` names, with their cards, to folders of ``destination``, which is replaced.

    Or say why not, and change nothing. The Turbo needs Edit, and Edit needs LongCat-Image, whose weights it has.
    """
    reasons = reasons_against_all(models, results, subset)
    if reasons:
        return reasons
    temporary = destination.with_name(destination.name + ".new")
    shutil.rmtree(temporary, ignore_errors=True)
    for name in results:
        shutil.copytree(models / name, temporary / name)
    mark_trained(temporary / BASE)
    for name, result in results.items():
        (temporary / name / "README.md").write_text(_card(temporary, name, result), encoding="utf-8")
    for name in results:
        if name != BASE:
            seal_part(temporary / name)
    for path in temporary.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(destination, ignore_errors=True)
    temporary.rename(destination)
    return []


def _card(models: Path, name: str, result: Mapping[str, Any]) -> str:
    stored = weight_bytes(models, (name,))
    of_subset = "" if result.get("subset", "all") == "all" else f" (of the scenes called {result['subset']} alone)"
    values = {
        "name": name,
        "steps": json.loads((models / name / TRAINING).read_text(encoding="utf-8"))["step"],
        "of_subset": of_subset,
        "sampling": f"{result['steps']} steps, guidance {result['guidance']}",
        "psnr": result["psnr_db"],
    }
    if name == BASE:
        accuracy = share_with_interval(result["met"], result["prompts"])
        parameters = f"{stored // 2 / 1e6:.1f} M"
        return CARD.format(accuracy=accuracy, parameters=parameters, megabytes=stored / 1e6, **values)
    title, what, on = ABOUT[name]
    return EDIT_CARD.format(
        accuracy=share_with_interval(result["met"], result["edits"]), title=title, what=what, on=on, **values
    )


def summary_path(evaluation: Path, name: str) -> Path:
    """Where the evaluation of this checkpoint wrote its summary."""
    return evaluation / ("summary.json" if name == BASE else f"{name}-summary.json")


def main(arguments: list[str] | None = None) -> int:
    """Package, or say why not; 0 or 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("build/training/models"), help="folder of the checkpoints")
    parser.add_argument("--evaluation", type=Path, default=Path("build/training/evaluation-of-models"))
    parser.add_argument("--names", nargs="+", choices=NAMES, default=list(NAMES), help="the first one, two or three")
    parser.add_argument("--subset", default="all", help="the scenes that the evaluations drew")
    parser.add_argument("--destination", type=Path, default=DESTINATION)
    options = parser.parse_args(arguments)
    names = NAMES[: len(options.names)]
    if tuple(options.names) != names:
        parser.error(f"--names {' '.join(options.names)}: {', '.join(NAMES)} are packaged in this order")
    results = {name: json.loads(summary_path(options.evaluation, name).read_text(encoding="utf-8")) for name in names}
    options.destination.parent.mkdir(parents=True, exist_ok=True)
    reasons = package(options.models, results, options.destination, options.subset)
    if not reasons:
        from fuseproof.pipelines.packaged_models import index_packaged

        index_packaged(options.destination)
    sys.stdout.write("".join(f"not packaged: {reason}\n" for reason in reasons) or f"{options.destination}\n")
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
