"""``fuseproof abba --dry-run`` as text: what the slots share once, then each slot with what is its own."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.harness.machine.redaction import redact

if TYPE_CHECKING:
    from fuseproof.harness.campaign.arm_places import ArmPlace
    from fuseproof.harness.campaign.estimates import DryRun
    from fuseproof.schedules.plan import Arm, Plan

WIDTH = 80
SLOT = "SLOT"
CELL_FLAGS = "CELL_FLAGS"


def dry_run_lines(plan: Plan, planned: DryRun, shown_directory: Path, remarks: Sequence[str] = ()) -> Iterator[str]:
    """The lines of the text form; ``shown_directory`` is the campaign's folder as a person types it."""
    from fuseproof.harness.campaign.arms import default_overrides, shared_words, takes_flags

    yield f"{len(planned.slots)} slots, each a fresh process, into {shown_directory}"
    yield "environment of every slot, beside your own:"
    yield from wrapped([f"{name}={value}" for name, value in default_overrides().items()])
    uses_cells = any(takes_flags(arm) for arm in plan.arms.all)
    for cell in plan.cells:
        yield f"cell {cell.name} (outputs: {cell.contract})" + (f", {CELL_FLAGS}:" if uses_cells and cell.flags else "")
        if uses_cells and cell.flags:
            yield from wrapped(shared_words(cell.flags))
    if plan.ablation is None:
        yield from _arms_and_slots(plan, planned, shown_directory)
    else:
        yield from _units_and_order(plan, planned, shown_directory)
    yield from _cost_lines(planned)
    for remark in remarks:
        yield from textwrap.wrap(f"note: {remark}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    yield "nothing was run or written; --json adds every slot's full command"


def _units_and_order(plan: Plan, planned: DryRun, shown_directory: Path) -> Iterator[str]:
    """Of an ablation, whose arms differ in ``--fastpaths`` alone: the command once, a line a unit, the order once."""
    from fuseproof.cli.abba_ablate_dry_run import order_lines, unit_lines
    from fuseproof.schedules.ablation import FASTPATHS

    yield f"every arm, each with {FASTPATHS} of its own:"
    words = _arm_words(plan.arm("A"), planned.places.get("A"))
    yield from wrapped([f"{FASTPATHS}=NAMES" if word.split("=", 1)[0] == FASTPATHS else word for word in words])
    yield from unit_lines(plan, planned)
    yield f"order of the slots ({SLOT} is {shown_directory}/slots/CELL/BLOCK-PLACE-ARM):"
    yield from order_lines(planned)


def _arms_and_slots(plan: Plan, planned: DryRun, shown_directory: Path) -> Iterator[str]:
    for letter in plan.letters:
        arm, role = plan.arm(letter), "baseline" if letter == "A" else "candidate"
        article = "the" if len(plan.letters) == 2 or letter == "A" else "a"
        own_name = "" if arm.name in (role, f"{role} {letter}") else f" ({arm.name})"
        yield f"arm {letter}, {article} {role}{own_name}:"
        yield from _place_lines(arm, planned.places.get(letter))
        yield from wrapped(_arm_words(arm, planned.places.get(letter)))
    yield f"slots ({SLOT} is {shown_directory}/slots/ and the slot's name):"
    width = max((len(slot.id) for slot, _ in planned.slots), default=0)
    for slot, _ in planned.slots:
        note = "warm-up, discarded" if slot.kind == "warmup" else f"{slot.orientation} {slot.label}"
        yield f"  {slot.id:<{width}}  arm {slot.arm}  {note}"


def _place_lines(arm: Arm, place: ArmPlace | None) -> Iterator[str]:
    """The commit of a ref and where its tree will be; an interpreter of the arm's own."""
    if place is not None and place.commit is not None:
        yield f"    {arm.ref} = {place.commit}"
        yield f"    tree: {redact(str(place.tree))}, with cache folders of the arm's own"
    if arm.setup is not None:
        yield f"    setup, once: {arm.setup}"
    if place is not None and place.python is not None:
        yield f"    python: {redact(place.python)}"


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


def _arm_words(arm: Arm, place: ArmPlace | None) -> list[str]:
    from fuseproof.harness.campaign import arms
    from fuseproof.harness.campaign.arm_places import ArmPlace, place_environment
    from fuseproof.harness.campaign.arms import filled_template, program_words, shared_words

    place = ArmPlace() if place is None else place
    # Cache folders are left out: a line each, and --json has them.
    variables = place_environment(arm, replace(place, caches={}), sys.executable, os.environ)
    own = [f"{name}={value}" for name, value in variables.items()]
    dump, outputs = f"{SLOT}/perf.json", f"{SLOT}/outputs"
    if arm.command is not None:
        words = filled_template(arm, dump, outputs, place)
        return [*own, *(CELL_FLAGS if word == arms.CELL_FLAGS else word for word in words)]
    files = ["--perf-dump-path", dump, "--output-path", outputs]
    return [*own, *program_words(place), CELL_FLAGS, *shared_words(arm.flags), *files]


def _cost_lines(planned: DryRun) -> Iterator[str]:
    limit = f"at most {planned.limit_s / 60:.0f} min by --timeout"
    if planned.total_s is None:
        yield f"time: unknown before the first slot; {limit}"
    else:
        yield f"time: about {planned.total_s / 60:.1f} min by the plan's hints; {limit}"
    needed = "unknown before the first slot" if planned.total_mib is None else f"about {planned.total_mib:.1f} MiB"
    free = "" if planned.free_mib is None else f"; {planned.free_mib:.0f} MiB are free"
    yield f"disk: {needed}{free}"
