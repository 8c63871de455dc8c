"""Which flags of ``fuseproof abba`` say where blocks run, and what they cannot be said with. Asked while parsing."""

from __future__ import annotations

from typing import Any

from fuseproof.cli.option_fields import flag_name
from fuseproof.errors import UsageError


def refuse_useless_lanes(options: Any) -> None:
    """Raise :class:`UsageError` for a flag that would say nothing: each executor has its own way to choose GPUs."""
    if options.gpus is not None and options.executor == "ray":
        raise UsageError(
            f"--gpus {options.gpus} has no effect with --executor ray, which places the blocks itself.",
            next_step="Leave --gpus out; `ray start --num-gpus` says how many of a node's GPUs may be used.",
        )
    if options.gpus_per_block is not None and options.executor != "ray":
        raise UsageError(
            f"--gpus-per-block {options.gpus_per_block} has no effect without --executor ray.",
            next_step="Name the GPUs with --gpus, or add --executor ray.",
        )
    lanes = "--gpus" if options.gpus is not None else "--executor ray" if options.executor == "ray" else None
    for other in ("quick", "plan_for"):
        if lanes is not None and getattr(options, other) not in (None, False):
            raise UsageError(
                f"{lanes} has no effect with {flag_name(other)}, which runs no block.", next_step="Leave one out."
            )
