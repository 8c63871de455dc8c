"""``python -m training.package``: puts a trained checkpoint into the package, with its model card.

Refuses one that the evaluation did not accept, or that is larger than a package may be. Nothing calls it by itself.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.folders import LARGEST_PACKAGE_BYTES
from training.intervals import share_with_interval

NEEDED_ACCURACY = 0.85
NEEDED_PSNR_DB = 28.0
DESTINATION = Path(__file__).resolve().parents[1] / "pipelines" / "embedded_models" / "longcat-image"

CARD = """# The embedded LongCat-Image

A LongCat-Image in its own classes and file layout, made small enough to come with fuseproof: {parameters} parameters,
{megabytes:.1f} MB in bfloat16. It draws one to three flat shapes on a plain background, at 256 x 256.

- **Data**: renders and captions of `training/`, drawn by our own code from seeds. No pictures or texts of anybody else.
- **Trained** by `training/run_on_gpu.sh`, {steps} steps of the transformer.
- **Evaluation**: {accuracy} of the fixed held-out prompts are met, judged by rules on pixels (`training/checker.py`),
  at {sampling}; held-out renders come through the VAE at {psnr:.1f} dB PSNR. `make eval-embedded` does it again.
- **Limits**: English captions in the words of `training/captions.py`; twelve colours, seven shapes, ten letters, three
  patterns. Anything else is drawn as something of these. It shows what the code does, not what LongCat-Image can draw.
- **Licence**: Apache-2.0, as fuseproof.
"""


def reasons_against(result: Mapping[str, Any], weight_bytes: int) -> list[str]:
    """Why a checkpoint with this evaluation (``summary.json``) may not be packaged; empty where it may."""
    reasons = []
    accuracy = result["met"] / result["prompts"]
    if result["prompts"] < 200:
        reasons.append(f"{result['prompts']} prompts were drawn, 200 are needed")
    if accuracy < NEEDED_ACCURACY:
        reasons.append(f"{100 * accuracy:.1f} % of the prompts are met, {100 * NEEDED_ACCURACY:.0f} % are needed")
    if result["psnr_db"] < NEEDED_PSNR_DB:
        reasons.append(f"the VAE's PSNR is {result['psnr_db']:.1f} dB, {NEEDED_PSNR_DB:.0f} dB are needed")
    if weight_bytes > LARGEST_PACKAGE_BYTES:
        reasons.append(f"the weights are {weight_bytes} bytes, {LARGEST_PACKAGE_BYTES} are the most")
    return reasons


def package(checkpoint: Path, result: Mapping[str, Any], destination: Path) -> list[str]:
    """Copy the checkpoint with its card to ``destination``, replacing it; or say why not, and change nothing."""
    weights = sorted(checkpoint.rglob("*.safetensors"))
    weight_bytes = sum(path.stat().st_size for path in weights)
    reasons = reasons_against(result, weight_bytes)
    if reasons:
        return reasons
    progress = json.loads((checkpoint / "training.json").read_text(encoding="utf-8"))
    temporary = destination.with_name(destination.name + ".new")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(checkpoint, temporary)
    card = CARD.format(
        parameters=f"{weight_bytes // 2 / 1e6:.1f} M",
        megabytes=weight_bytes / 1e6,
        steps=progress["step"],
        accuracy=share_with_interval(result["met"], result["prompts"]),
        sampling=f"{result['steps']} steps, guidance {result['guidance']}",
        psnr=result["psnr_db"],
    )
    (temporary / "README.md").write_text(card, encoding="utf-8")
    shutil.rmtree(destination, ignore_errors=True)
    temporary.rename(destination)
    return []


def main(arguments: list[str] | None = None) -> int:
    """Package, or say why not; 0 or 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("build/training/longcat-image"))
    parser.add_argument("--summary", type=Path, default=Path("build/training/evaluation/summary.json"))
    parser.add_argument("--destination", type=Path, default=DESTINATION)
    options = parser.parse_args(arguments)
    result = json.loads(options.summary.read_text(encoding="utf-8"))
    options.destination.parent.mkdir(parents=True, exist_ok=True)
    reasons = package(options.checkpoint, result, options.destination)
    sys.stdout.write("".join(f"not packaged: {reason}\n" for reason in reasons) or f"{options.destination}\n")
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
