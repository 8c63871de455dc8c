"""What a person should know of a plan before it runs: cells that cannot get a word, weights that need a large GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.errors import FuseproofError

if TYPE_CHECKING:
    from fuseproof.harness.machine.gpus import GpuSurvey
    from fuseproof.schedules.plan import Plan


def one_block_remark(plan: Plan) -> str | None:
    """Which cells have one block, and what that means; None where every cell has more."""
    names = [cell.name for cell in plan.cells if plan.blocks_of(cell.name) == 1]
    if not names:
        return None
    verb, what = ("has", "it describes, and is") if len(names) == 1 else ("have", "they describe, and are")
    return f"{', '.join(names)} {verb} one block: {what} never FASTER or SLOWER"


def dummy_weights_remark(plan: Plan, gpus: GpuSurvey) -> str | None:
    """That weights of a released size would be made in host memory; None with a CUDA device, or without them."""
    from fuseproof.harness.machine.gpus import visible_gpus

    visible, _ = visible_gpus(gpus.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if visible:
        return None
    needed = dict(_dummy_weights_gib(plan))
    if not needed:
        return None
    half, whole = max(needed.values())
    return (
        f"no CUDA device here, and --load-format dummy in {', '.join(needed)} makes {half:.1f} GiB of weights in "
        f"bfloat16 ({whole:.1f} GiB in float32): a plan's hints of time are for a large GPU, and without one "
        "these cells take hours, if they fit at all"
    )


def _dummy_weights_gib(plan: Plan) -> Iterator[tuple[str, tuple[float, float]]]:
    """Cells that any ``generate`` arm runs on dummy weights, with the size of those in bfloat16 and in float32."""
    from fuseproof.cli.abba_arms import parsed_flags
    from fuseproof.harness.campaign.arms import generate_words
    from fuseproof.pipelines.dummy_geometry import family_of_dummy, geometry_of

    for cell in plan.cells:
        for arm in plan.arms.all:
            if arm.command is not None:
                continue
            options = parsed_flags(generate_words(arm, cell, Path("perf.json"), Path("outputs")))
            if not isinstance(options, FuseproofError) and options.load_format == "dummy":
                geometry = geometry_of(family_of_dummy(options.model_path))
                half, whole = (geometry.weight_bytes(dtype) / 2**30 for dtype in ("bfloat16", "float32"))
                yield cell.name, (half, whole)
