"""The plan of an imported campaign: its workloads, its arms and how it is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from fuseproof.errors import UsageError
from fuseproof.harness.campaign.origin import UNRECORDED_COMMAND
from fuseproof.harness.importing.files import shown_text
from fuseproof.harness.importing.manifest import ADVICE, Manifest, ManifestArm
from fuseproof.harness.importing.placing import ImportedRun, PlacedBlock, cell_names
from fuseproof.schedules.contracts import parse_contract
from fuseproof.schedules.plan import Arm, Arms, Cell, Plan, first_problem, plan_from

DEFAULT_CONTRACT = "exact"
DEFAULT_MIN_EFFECT = 0.01


@dataclass(frozen=True)
class Choices:
    """What the command line says of the plan; None takes the manifest's value, then the default."""

    name: str | None = None
    title: str | None = None
    contract: str | None = None
    primary: str | None = None
    min_effect: float | None = None


def cells_of(runs: Sequence[ImportedRun], manifest: Manifest) -> dict[str, str]:
    """What file names call each workload → the cell's name, in the manifest's order, then by name."""
    texts = sorted({run.label.cell for run in runs})
    stated = {text: cell.name for text in texts if (cell := manifest.cell_of(text)) is not None}
    order = [cell.name for cell in manifest.cells]
    found = dict(sorted(stated.items(), key=lambda item: order.index(item[1])))
    if len(set(found.values())) < len(found):
        twice = next(name for name, times in Counter(found.values()).items() if times > 1)
        raise UsageError(
            f"The manifest's cell {twice!r} is the label of two workloads: {', '.join(found)}.",
            next_step="Give each of them a cell of its own.",
        )
    others = cell_names([*found.values(), *(text for text in texts if text not in stated)])
    return found | {text: others[text] for text in texts if text not in stated}


def plan_of(choices: Choices, manifest: Manifest, blocks: Sequence[PlacedBlock], cells: Mapping[str, str]) -> Plan:
    """The plan that the blocks answer; :class:`UsageError` for a name, contract or command that no plan can hold."""
    counts = Counter(block.cell for block in blocks)
    first = next(iter(cells.values()))
    stated = {cell.name: cell.contract for cell in manifest.cells}
    contract = None if choices.contract is None else str(parse_contract(choices.contract))
    is_mirrored = any(block.orientation == "BAAB" for block in blocks)
    values = {
        "name": choices.name or manifest.name or first,
        "title": shown_text(manifest.title if choices.title is None else choices.title),
        "arms": Arms(
            baseline=_arm(manifest.arms.baseline, "baseline"), candidate=_arm(manifest.arms.candidate, "candidate")
        ),
        "cells": tuple(
            Cell(name=name, contract=contract or stated.get(name) or DEFAULT_CONTRACT, blocks=counts[name])
            for name in cells.values()
        ),
        "blocks": max(counts.values()),
        "order": "mirrored" if is_mirrored else "ABBA",
        "primary": choices.primary or manifest.primary or "worker",
        "min_effect": _first(choices.min_effect, manifest.min_effect, DEFAULT_MIN_EFFECT),
        "warmup_slots": 0,
        "aa": manifest.aa,
    }
    try:
        return plan_from(values, "import")
    except UsageError as error:
        error.next_step = "Correct it on the command line or in the manifest."
        raise


def _arm(stated: ManifestArm, word: str) -> Arm:
    values = {"name": stated.name or word, "command": stated.command or UNRECORDED_COMMAND, "env": dict(stated.env)}
    try:
        return Arm.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"manifest: arms.{word}: {first_problem(error)}.", next_step=ADVICE) from error


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
