"""The run plan that the flags of ``fuseproof abba`` describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuseproof.cli.abba_ablate import ablated
from fuseproof.cli.abba_candidates import all_given, arm_from, refuse_several, with_further_candidates
from fuseproof.cli.abba_from import plan_again
from fuseproof.cli.abba_names import campaign_name, has_names, has_telling_names, title_of, with_names
from fuseproof.cli.abba_options import ARM_FIELDS, OVERRIDES, AbbaOptions
from fuseproof.cli.abba_sources import only_cells, refuse_missing_refs, refuse_unheard_flags, with_sources
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.schedules.plan import Plan

Values = dict[str, Any]
KEPT_OF_DEFAULT = ("schema", "blocks", "order", "primary", "min_effect", "warmup_slots")


def build_plan(options: AbbaOptions) -> Plan:
    """A plan's own values, with those flags that were given in their place; :class:`UsageError` names what is wrong."""
    from fuseproof.schedules.plan import DEFAULT_PLAN, load_plan, plan_from

    if options.from_stored is not None:
        return plan_again(options).plan
    loaded = load_plan(DEFAULT_PLAN if options.plan is None else options.plan)
    base = _with_cells(options, loaded.to_json())
    base["arms"] = _arms(options, base["arms"])
    if options.plan is None and not base["title"] and not options.aa and has_telling_names(base["arms"]):
        base["title"] = title_of(base["arms"])
    if len(base["arms"]) > 2 and (options.plan is None or "blocks" not in loaded.model_fields_set):
        base.pop("blocks")  # as many as arms
    base |= {key: getattr(options, field) for field, key in OVERRIDES.items() if getattr(options, field) is not None}
    base |= _said_of_all_cells(options, base)
    if options.aa:
        base |= {"aa": True, "arms": dict.fromkeys(("baseline", "candidate"), base["arms"]["baseline"])}
    if options.name is not None:
        base["name"] = options.name
    base |= ablated(options, base) if options.ablate is not None else {}
    plan = plan_from(base, "the command line")
    refuse_missing_refs(plan)
    refuse_unheard_flags(plan, options.flags)
    return plan


def _with_cells(options: AbbaOptions, base: Values) -> Values:
    """The plan with the cells that will run and the flags of them; without a PLAN, flags make the cell."""
    has_own_arms = any(getattr(options, field) is not None for field in ARM_FIELDS)
    if options.plan is None and (has_own_arms or options.flags is not None):
        base = _from_flags(options, base, has_own_arms)
    elif options.flags is not None:
        base["cells"] = [cell | {"flags": f"{cell['flags']} {options.flags}"} for cell in base["cells"]]
    return base | {"cells": only_cells(options.cells, base["cells"])}


def _from_flags(options: AbbaOptions, default: Values, has_own_arms: bool) -> Values:
    """A plan from flags alone: the default plan's cell stands in only while nothing else says what to draw."""
    runs_only_commands = options.baseline_command is not None and (options.candidate_command is not None or options.aa)
    cells = default["cells"]
    if runs_only_commands:
        cells = [{"name": "command", "flags": options.flags or ""}]
    elif options.flags is not None:
        cells = [{"name": "request", "flags": options.flags}]
    arms = {name: {"name": name} for name in ("baseline", "candidate")} if has_own_arms else default["arms"]
    kept = {key: default[key] for key in KEPT_OF_DEFAULT}
    if options.baseline_ref is not None or options.candidate_ref is not None:
        kept["warmup_slots"] = 2  # each arm's caches are its own and cold
    title = _title(options) if has_own_arms and not has_names(options) else ""
    return kept | {"name": campaign_name(options), "title": title, "arms": arms, "cells": cells}


def _title(options: AbbaOptions) -> str:
    """What is compared, in the user's own words; empty where a command would be too long to read."""
    if options.baseline_ref is not None and options.candidate_ref is not None:
        return f"{options.baseline_ref} against {', '.join(all_given(options, 'candidate_ref'))}"
    has_command = options.baseline_command or options.candidate_command
    if options.aa or has_command or options.baseline_ref or options.candidate_ref:
        return ""
    candidates = [flags or "no extra flags" for flags in all_given(options, "candidate") or [""]]
    return f"{options.baseline or 'no extra flags'} against {', '.join(candidates)}"


def _arms(options: AbbaOptions, arms: dict[str, Values]) -> dict[str, Values]:
    plan_candidate = arms["candidate"]
    own = arms | {role: _arm(options, role, arms[role]) for role in ("baseline", "candidate")}
    found = with_further_candidates(options, own, plan_candidate)
    refuse_several(options, found)
    return with_names(options, with_sources(options, found))


def _arm(options: AbbaOptions, role: str, arm: Values) -> Values:
    flags, command = getattr(options, role), getattr(options, f"{role}_command")
    named = arm if flags is None and command is None else arm | {"name": role}
    return arm_from(options, named, flags, command, getattr(options, f"{role}_ref"))


def _said_of_all_cells(options: AbbaOptions, base: Values) -> Values:
    """What one flag says of every cell: its blocks, its contract, its requirements, its raw arrays."""
    changed: Values = {}
    if options.blocks is not None:
        changed["blocks"] = None
    if options.contract is not None:
        changed["contract"] = options.contract
    cells = [cell | changed for cell in base["cells"]]
    if options.keep_raw:
        cells = _keeping_raw(cells, base["arms"])
    return {"cells": cells} | ({} if options.qualify is None else {"qualify": _requirements(options.qualify)})


def _keeping_raw(cells: list[Values], arms: dict[str, Values]) -> list[Values]:
    """The cells with the flag of `generate` that keeps arrays; a command keeps what it likes."""
    if all(arm.get("command") is not None for arm in arms.values()):
        raise UsageError(
            "--keep-raw has no effect when both arms are commands of their own.",
            next_step="Let the commands write raw/NAME.npy beside their perf dumps, one array an output.",
        )
    return [cell | {"flags": f"{cell.get('flags') or ''} --keep-raw".strip()} for cell in cells]


def _requirements(text: str) -> list[str]:
    from fuseproof.schedules.qualification import split_requirements

    try:
        return [str(requirement) for requirement in split_requirements(text)]
    except UsageError as error:
        raise UsageError(f"--qualify {text!r}: {error.message}", next_step=error.next_step) from error
