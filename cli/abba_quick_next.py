"""The command that makes a quick run evidence: the same one without what makes it quick, and with blocks for a word."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuseproof.cli.abba_options import AbbaOptions
    from fuseproof.schedules.plan import Plan

FEWEST_BLOCKS = 2
"""One block never gives a directional word."""
SWITCHES = ("--quick", "--json")
BLOCKS = "--blocks"


def evidence_command(arguments: Sequence[str], options: AbbaOptions, plan: Plan) -> str:
    """``fuseproof abba …``, as a shell takes it; ``plan`` is what the quick run ran, by ``arguments``."""
    from fuseproof.cli.abba_plan import build_plan

    words = [word for word in arguments if word not in SWITCHES]
    if _fewest(plan) < FEWEST_BLOCKS:
        kept = _without_blocks(words)
        own = build_plan(dataclasses.replace(options, blocks=None))
        words = kept if kept != words and _fewest(own) >= FEWEST_BLOCKS else [*kept, f"{BLOCKS}={FEWEST_BLOCKS}"]
    return shlex.join(["fuseproof", "abba", *words])


def _fewest(plan: Plan) -> int:
    return min(plan.blocks_of(cell.name) for cell in plan.cells)


def _without_blocks(words: Sequence[str]) -> list[str]:
    values = {index + 1 for index, word in enumerate(words) if word == BLOCKS}
    return [
        word
        for index, word in enumerate(words)
        if index not in values and word != BLOCKS and not word.startswith(f"{BLOCKS}=")
    ]
