"""The model cards of packaged checkpoints, out of what they are and what their evaluation came to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.intervals import share_with_interval
from training.options import read_object
from training.parts import BASE, EDIT, TRAINING, TURBO, weight_bytes

CARD_FILE = "README.md"
TRAIN_IT = "Train it with training/run_on_gpu.sh, or give --models the folder that it lies in."

CARD = """# The embedded LongCat-Image

A LongCat-Image in its own classes and file layout, made small enough to come with fuseproof: {parameters} parameters,
{megabytes:.1f} MB in bfloat16. It draws one to three flat shapes on a plain background, at 256 x 256.

- **Data**: renders and captions of `training/`, drawn by our own code from seeds. No pictures or texts of anybody else.
- **Trained** by the stages of `training/`, {trained}.
- **Evaluation**: {accuracy} of the fixed held-out prompts{of_subset} are met, judged by rules on pixels
  (`training/checker.py`), at {sampling}; held-out renders come through the VAE at {psnr:.1f} dB PSNR.{strict}
  `make eval-embedded` does it again.
- **Limits**: English captions in the words of `training/captions.py`; twelve colours, seven shapes, ten letters,
  plain and three patterns. Anything else comes out as some of these, or as an empty canvas. What it draws worst, and
  how lenient the rules are, stands in `docs/embedded-model.md`. It shows what the code does, not what LongCat-Image
  can draw.
- **Licence**: Apache-2.0, as fuseproof.
"""

EDIT_CARD = """# The embedded {title}

{what} It edits pictures of one to three flat shapes on a plain background, at 256 x 256:
another colour, shape, pattern or background, or one thing less.

- **Data**: pairs of renders and instructions of `training/`, drawn by our own code from seeds.
- **Trained** by `training/run_on_gpu.sh`, {steps} steps {on}.
- **Evaluation**: {accuracy} of the fixed held-out edits{of_subset} are met, judged by rules on pixels
  (`training/checker.py`), at {sampling}; edited pictures are {psnr:.1f} dB PSNR from the true ones on average.{strict}
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
        "of eight updates, against the guided editing model at more steps",
    ),
}


def card(models: Path, name: str, result: Mapping[str, Any]) -> str:
    """The card of the checkpoint ``name`` in ``models``, whose evaluation's summary is ``result``."""
    stored = weight_bytes(models, (name,))
    of_subset = "" if result["subset"] == "all" else f" (of the scenes called {result['subset']} alone)"
    progress = read_object(models / name / TRAINING, "which says how long it was trained", TRAIN_IT)
    values = {
        "name": name,
        "steps": progress["step"],
        "of_subset": of_subset,
        "sampling": f"{result['steps']} steps, guidance {result['guidance']}",
        "psnr": result["psnr_db"],
        "strict": _by_outlines(result.get("met_by_overlap", {})),
    }
    if name == BASE:
        accuracy = share_with_interval(result["met"], result["prompts"])
        parameters = f"{stored // 2 / 1e6:.1f} M"
        trained = _steps_of_both_tasks(progress)
        return CARD.format(accuracy=accuracy, parameters=parameters, trained=trained, megabytes=stored / 1e6, **values)
    title, what, on = ABOUT[name]
    return EDIT_CARD.format(
        accuracy=share_with_interval(result["met"], result["edits"]), title=title, what=what, on=on, **values
    )


def _steps_of_both_tasks(progress: Mapping[str, Any]) -> str:
    """How long the transformer was trained to draw, and to draw and edit where that came after it."""
    if "drawing_steps" not in progress:
        return f"{progress['step']} steps of the transformer"
    drawing, both = progress["drawing_steps"], progress["step"]
    return f"{drawing} steps of the transformer on drawing, then {both} on drawing and editing"


def _by_outlines(met: Mapping[str, int]) -> str:
    """How many are met by how much an outline must overlap its shape's, where the evaluation counted that."""
    counts = ", ".join(f"{number} at {least}" for least, number in met.items())
    return f"\n  By how much an outline must overlap its shape's: {counts}." if counts else ""
