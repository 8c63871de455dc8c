"""``fuseproof abba --ablate fastpaths``: the plan whose arms have each fast path alone, and all but each."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from fuseproof.cli.option_fields import flag_name
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.cli.abba_options import AbbaOptions
    from fuseproof.schedules.plan import Plan

Values = dict[str, Any]
Units = dict[str, tuple[str, ...]]
REST = "rest"
"""The unit of all fast paths that ``--only`` does not name."""
LONGEST_KEY = 64
EXCLUDED = (
    *("baseline", "candidate", "baseline_command", "candidate_command", "baseline_ref", "candidate_ref"),
    *("baseline_name", "candidate_name", "repo", "setup", "python", "time_pattern", "aa", "quick", "plan_for", "floor"),
)
"""Flags of ``abba`` that speak of two arms, or of arms of one's own."""
ONLY_WITH_IT = ("only", "ablate_by")


def refuse_useless_ablation(options: AbbaOptions) -> None:
    """Raise :class:`UsageError` for flags that go with ``--ablate`` alone, or that do not go with it."""
    if options.ablate is None:
        for field in ONLY_WITH_IT:
            if getattr(options, field) is not None:
                raise UsageError(f"{flag_name(field)} has no effect without --ablate fastpaths.", next_step="Add it.")
        if options.bench is not None and options.resume is None and options.from_stored is None:
            raise UsageError("--bench has no effect without --ablate fastpaths.", next_step="Add it.")
        return
    for field in EXCLUDED:
        if getattr(options, field) not in (None, False):
            raise UsageError(
                f"--ablate and {flag_name(field)} exclude each other: an ablation makes its arms itself.",
                next_step="Leave one out; what all arms share belongs in --flags.",
            )


def ablated(options: AbbaOptions, base: Values) -> Values:
    """The keys of the plan that an ablation replaces: arms, blocks, title, name, and ``ablation`` itself."""
    from fuseproof.cli.abba_ablate_sites import sites_of_cells
    from fuseproof.schedules.ablation import WAYS, arms_of, fastpaths_flag
    from fuseproof.schedules.plan import plan_from

    shared = _shared_flags(base["arms"])
    plain = plan_from(base, "the command line")
    env = plain.arms.baseline.env
    found = sites_of_cells(plain.cells, plain.arms.baseline.model_copy(update={"flags": shlex.join(shared)}))
    units = units_of(options.only, found.sites, found.needed)
    needs = needs_of(units, found.needed)
    by = next(way for way in WAYS if way == (options.ablate_by or "both"))
    arms = arms_of(units, needs, by)
    _refuse_too_many(len(arms), len(units))
    keys = dict(zip(arms, _keys(list(arms)), strict=True))
    made = {
        keys[name]: {"name": name, "flags": shlex.join([*shared, fastpaths_flag(units, own)]), "env": env}
        for name, own in arms.items()
    }
    ordered = {keys[name]: [unit for unit in units if unit in own] for name, own in arms.items()}
    return {
        "name": f"{base['name']}-ablation"[:LONGEST_KEY] if options.name is None else options.name,
        "title": "Ablation of fast paths" + ("" if options.plan is None else f": {base['name']}"),
        "arms": made,
        "ablation": {"by": by, "units": units, "needs": needs, "arms": ordered},
    }


def units_of(only: str | None, sites: Sequence[str], needed: Mapping[str, str]) -> Units:
    """Every site a unit; with ``--only`` those it names (``a+b`` is one), what they need, and all others together."""
    if only is None:
        return {site: (site,) for site in sites}
    groups = [tuple(part.strip() for part in entry.split("+")) for entry in only.split(",") if entry.strip()]
    named = [site for group in groups for site in group]
    if not named:
        raise UsageError(f"--only is {only!r}; names of fast paths were expected.", next_step=_listed(sites))
    for site in named:
        if site not in sites:
            close = get_close_matches(site, sites, n=1)
            hint = f"Did you mean {close[0]}? " if close else ""
            raise UsageError(f"--only names {site!r}, which is no fast path here.", next_step=hint + _listed(sites))
        if named.count(site) > 1:
            raise UsageError(f"--only names {site!r} twice.", next_step="Give every fast path one place.")
    groups += [(site,) for site in sites if site not in named and site in {needed.get(name) for name in named}]
    taken = {site for group in groups for site in group}
    rest = tuple(site for site in sites if site not in taken)
    units = {"+".join(group): group for group in groups} | ({REST: rest} if rest else {})
    if len(units) < 2:
        raise UsageError(
            f"--only {only} leaves one unit, and an ablation takes two or more apart.", next_step=_listed(sites)
        )
    return units


def needs_of(units: Units, needed: Mapping[str, str]) -> Units:
    """Which units each unit cannot work without; :class:`UsageError` where two need each other."""
    unit_of = {site: unit for unit, sites in units.items() for site in sites}
    found = {
        unit: tuple(dict.fromkeys(unit_of[needed[s]] for s in sites if needed.get(s) in unit_of))
        for unit, sites in units.items()
    }
    found = {unit: own for unit, sites in found.items() if (own := tuple(one for one in sites if one != unit))}
    for unit, own in found.items():
        mutual = next((one for one in own if unit in found.get(one, ())), None)
        if mutual is not None:
            raise UsageError(
                f"--only: {unit} and {mutual} need each other, so neither can be alone.",
                next_step="Put what needs each other into one unit.",
            )
    return found


def ablation_remark(plan: Plan) -> str | None:
    """What an ablation will run, for ``--dry-run``; None for any other plan."""
    if plan.ablation is None:
        return None
    ways = {"alone": "alone", "without": "left out", "both": "alone and left out"}[plan.ablation.by]
    needs = [f"{unit} over {', '.join(own)}" for unit, own in plan.ablation.needs.items()]
    over = f"; {'; '.join(needs)}" if needs else ""
    return (
        f"{len(plan.ablation.units)} fast paths or groups of them, each {ways}: {len(plan.letters)} arms in one "
        f"palindromic block, {plan.slots_per_block} timed slots a block{over}"
    )


def _shared_flags(arms: Mapping[str, Values]) -> tuple[str, ...]:
    """The flags that all arms of the plan share beside ``--fastpaths``; :class:`UsageError` where others differ."""
    from fuseproof.schedules.ablation import without_fastpaths

    own = [arm for arm in arms.values() if any(arm.get(key) is not None for key in ("command", "ref", "python"))]
    flags = {without_fastpaths(arm.get("flags") or "") for arm in arms.values()}
    environments = [arm.get("env") or {} for arm in arms.values()]
    if own or len(flags) > 1 or any(env != environments[0] for env in environments):
        raise UsageError(
            "--ablate makes its arms from a plan whose arms run `generate` and differ in --fastpaths alone, and this "
            "plan's do not.",
            next_step="Name another plan, or give the request with --flags.",
        )
    return next(iter(flags))


def _refuse_too_many(arms: int, units: int) -> None:
    from fuseproof.schedules.order import LETTERS

    if arms > len(LETTERS):
        raise UsageError(
            f"{units} fast paths or groups of them make {arms} arms; an ablation has at most {len(LETTERS)}.",
            next_step="Use --ablate-by alone (or without), or name some with --only; a+b counts as one.",
        )


def _keys(names: Sequence[str]) -> list[str]:
    """Keys for the arms: those that every plan has, then the names in the letters that a key may have."""
    from fuseproof.schedules.ablation import BASELINE, WHOLE

    plain = [name.replace(":", "-").replace("+", "-") for name in names[2:]]
    is_plain = len(set(plain)) == len(plain) and all(len(key) <= LONGEST_KEY for key in plain)
    return [BASELINE, WHOLE, *(plain if is_plain else [f"arm-{number}" for number in range(3, 1 + len(names))])]


def _listed(sites: Sequence[str]) -> str:
    return f"The fast paths here are {', '.join(sites)}."
