"""``fuseproof abba --dry-run`` as text: what the slots share once, then each slot with what is its own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuseproof.harness.campaign.estimates import DryRun
    from fuseproof.schedules.plan import Arm, Plan

WIDTH = 80
SLOT = "SLOT"
CELL_FLAGS = "CELL_FLAGS"


def dry_run_lines(plan: Plan, planned: DryRun, shown_directory: Path) -> Iterator[str]:
    """The lines of the text form; ``shown_directory`` is the campaign's folder as a person types it."""
    from fuseproof.harness.campaign.arms import default_overrides

    yield f"{len(planned.slots)} slots, each a fresh process, into {shown_directory}"
    yield "environment of every slot, beside your own:"
    yield from wrapped([f"{name}={value}" for name, value in default_overrides().items()])
    uses_cells = any(arm.command is None for arm in (plan.arms.baseline, plan.arms.candidate))
    for cell in plan.cells:
        yield f"cell {cell.name} (outputs: {cell.contract})" + (f", {CELL_FLAGS}:" if uses_cells and cell.flags else "")
        if uses_cells and cell.flags:
            yield from wrapped(shlex.split(cell.flags))
    for letter, role in (("A", "baseline"), ("B", "candidate")):
        arm = plan.arm(letter)
        yield f"arm {letter}, the {role}" + (f" ({arm.name}):" if arm.name != role else ":")
        yield from wrapped(_arm_words(arm))
    yield f"slots ({SLOT} is {shown_directory}/slots/ and the slot's name):"
    width = max((len(slot.id) for slot, _ in planned.slots), default=0)
    for slot, _ in planned.slots:
        note = "warm-up, discarded" if slot.kind == "warmup" else f"{slot.orientation} {slot.label}"
        yield f"  {slot.id:<{width}}  arm {slot.arm}  {note}"
    yield from _cost_lines(planned)
    yield "nothing was run or written; --json adds every slot's full command"


def wrapped(words: Sequence[str], indent: str = "    ") -> Iterator[str]:
    """Words quoted for a shell, as few lines as fit into ``WIDTH`` columns; a word is never broken."""
    line = ""
    for word in (shlex.quote(word) for word in words):
        if line and len(indent) + len(line) + 1 + len(word) > WIDTH:
            yield indent + line
            line = ""
        line = f"{line} {word}" if line else word
    if line:
        yield indent + line


def _arm_words(arm: Arm) -> list[str]:
    from fuseproof.harness.campaign.arms import filled_template

    own = [f"{name}={value}" for name, value in arm.env.items()]
    dump, outputs = f"{SLOT}/perf.json", f"{SLOT}/outputs"
    if arm.command is not None:
        return [*own, *filled_template(arm, dump, outputs)]
    files = ["--perf-dump-path", dump, "--output-path", outputs]
    program = [sys.executable, "-m", "fuseproof", "generate"]
    return [*own, *program, CELL_FLAGS, *shlex.split(arm.flags), *files]


def _cost_lines(planned: DryRun) -> Iterator[str]:
    limit = f"at most {planned.limit_s / 60:.0f} min by --timeout"
    if planned.total_s is None:
        yield f"time: unknown before the first slot; {limit}"
    else:
        yield f"time: about {planned.total_s / 60:.1f} min by the plan's hints; {limit}"
    needed = "unknown before the first slot" if planned.total_mib is None else f"about {planned.total_mib:.1f} MiB"
    free = "" if planned.free_mib is None else f"; {planned.free_mib:.0f} MiB are free"
    yield f"disk: {needed}{free}"
