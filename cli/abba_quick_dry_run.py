"""``fuseproof abba --quick --dry-run``: what a quick run would load, mount and time; nothing is loaded or written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli import exit_codes
from fuseproof.cli.abba_dry_run import wrapped
from fuseproof.cli.abba_quick_rules import ArmOptions, arms_of

if TYPE_CHECKING:
    from fuseproof.cli.abba_options import AbbaOptions
    from fuseproof.schedules.order import PlannedSlot
    from fuseproof.schedules.plan import Plan

SCHEMA = "fuseproof.quick-dry-run/1"
SLOT = Path("SLOT")
"""Where a slot's files would be: below a temporary folder that is never made here."""


def show_quick_dry_run(options: AbbaOptions) -> int:
    """Check the arms as a quick run does, up to what needs no model, and print its slots. Returns the exit code."""
    from fuseproof.cli.abba_plan import build_plan
    from fuseproof.harness.campaign.arms import check_arms
    from fuseproof.harness.escape import visible

    plan = build_plan(options)
    check_arms(plan)
    arms = arms_of(plan, SLOT)
    if options.as_json:
        click.echo(json.dumps(as_json(plan, arms), indent=2, allow_nan=False))
    else:
        for line in quick_dry_run_lines(plan, arms):
            click.echo(visible(line))
    return exit_codes.DONE


def quick_dry_run_lines(plan: Plan, arms: Sequence[ArmOptions]) -> Iterator[str]:
    """The lines of the text form, not escaped."""
    from fuseproof.harness.campaign.arms import shared_words
    from fuseproof.harness.number_format import count

    yield f"EXPLORATORY, no verdict: {plan.title or plan.name}"
    yield f"one process, {count(_loads(arms), 'model load')}, fast paths mounted anew for every slot"
    for both in arms:
        slots = _slots(plan, both)
        yield f"cell {both.cell.name} (outputs: {both.cell.contract}), {count(len(slots), 'slot')}:"
        yield from wrapped(shared_words(both.cell.flags))
        for arm, role in ((plan.arms.baseline, "baseline"), (plan.arms.candidate, "candidate")):
            yield f"  {role} ({arm.name}):" if arm.name != role else f"  {role}:"
            yield from wrapped(shared_words(arm.flags) or ("(no extra flags)",))
        discarded = " ".join(slot.arm for slot in slots if slot.kind == "warmup")
        timed = " ".join(_blocks(slots))
        yield f"  order: {discarded} discarded, then {timed}"
    yield f"arms differ only in: {'; '.join(_treatment(plan)) or 'nothing (A/A)'}"
    yield "nothing was loaded, run or written; without --dry-run it runs and keeps nothing either"


def as_json(plan: Plan, arms: Sequence[ArmOptions]) -> dict[str, Any]:
    """``fuseproof.quick-dry-run/1``: strict JSON values."""
    return {
        "schema": SCHEMA,
        "is_evidence": False,
        "plan": plan.name,
        "title": plan.title,
        "loads": _loads(arms),
        "arms": {role: {"name": arm.name, "flags": arm.flags} for role, arm in plan.arms.by_key.items()},
        "treatment": _treatment(plan),
        "cells": [
            {
                "name": both.cell.name,
                "flags": both.cell.flags,
                "contract": both.cell.contract,
                "slots": [
                    {"id": slot.id, "label": slot.label, "arm": slot.arm, "kind": slot.kind}
                    for slot in _slots(plan, both)
                ],
            }
            for both in arms
        ],
    }


def _slots(plan: Plan, both: ArmOptions) -> list[PlannedSlot]:
    from fuseproof.cli.abba_quick_rules import WARMUPS
    from fuseproof.schedules.order import first_pass

    return list(first_pass({both.cell.name: plan.blocks_of(both.cell.name)}, plan.order, WARMUPS))


def _blocks(slots: Sequence[PlannedSlot]) -> list[str]:
    found: dict[int, str] = {}
    for slot in slots:
        if slot.kind == "timed":
            found[slot.block] = found.get(slot.block, "") + slot.arm
    return list(found.values())


def _loads(arms: Sequence[ArmOptions]) -> int:
    """A cell with the model of the cell before shares its load."""
    keys = [both.load_key for both in arms]
    return sum(index == 0 or key != keys[index - 1] for index, key in enumerate(keys))


def _treatment(plan: Plan) -> list[str]:
    from fuseproof.harness.analysis.treatment import declared_differences

    return declared_differences(plan.arms.baseline, plan.arms.candidate)
