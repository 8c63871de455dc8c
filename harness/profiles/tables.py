"""The tables of a profile, as parts of a document: by class, by site and module, chains, sites, keys."""

from __future__ import annotations

from collections.abc import Sequence

from fuseproof.harness.number_format import MISSING, count, number, percent, shortened
from fuseproof.harness.profiles.costs import OUTSIDE, Cost, by_class
from fuseproof.harness.profiles.profile import Chain, Profile, SiteRecord, Stage
from fuseproof.harness.report.document import Code, Table, Text

LONGEST_NAME = 90
LONGEST_REASON = 160
CLASS_TITLES = {"gemm": "GEMM", "cat": "concatenation", "reduce": "reduction"}


def class_title(name: str) -> str:
    """How a class is written."""
    return CLASS_TITLES.get(name, name)


def milliseconds(microseconds: float | None) -> str:
    """Microseconds as milliseconds with three decimals."""
    return MISSING if microseconds is None else number(microseconds / 1e3, 3)


def launches(value: float) -> str:
    """Launches of one step: a whole number unless steps differ."""
    return number(value, 0 if value == int(value) else 2)


def code(text: str | None, limit: int = LONGEST_NAME) -> Text:
    """A name as code; n/a where there is none. A long one keeps its beginning and its end, where names differ."""
    if not text:
        return MISSING
    half = (limit - 1) // 2
    return Code(text if len(text) <= limit else f"{text[:half]}…{text[-half:]}")


def bandwidth(gb_s: float | None) -> str:
    """GB/s, with decimals where they are few."""
    return number(gb_s, 0 if gb_s is None or gb_s >= 10 else 2)


def stages_table(profile: Profile) -> Table:
    """Every stage of the profile, of one step."""
    rows = tuple(
        (
            stage.name,
            profiled(stage),
            launches(stage.kernels / stage.steps),
            milliseconds(stage.device_us / stage.steps),
            milliseconds(stage.wall_us / stage.steps),
            milliseconds(stage.idle_us / stage.steps),
        )
        for stage in profile.stages
    )
    head = ("Stage", "Profiled", f"{profile.kernels_word} a step", "device ms", "wall ms", "wall without device ms")
    return Table(head, rows, range(2, 6))


def profiled(stage: Stage) -> str:
    """``3 of 50 steps``, or that it was one whole pass."""
    if stage.steps_of_request == 1:
        return "whole"
    return f"{stage.steps} of {count(stage.steps_of_request, 'step')}"


def class_table(profile: Profile, stage: Stage) -> Table:
    """Launches and device time of one step by class."""
    total = stage.device_us / stage.steps
    costs = by_class(profile.rows_of(stage), stage.steps)
    rows = [(class_title(one.name), one.kernels, one.device_us) for one in costs]
    rows.append(("all", stage.kernels / stage.steps, total))
    return Table(
        ("Class", f"{profile.kernels_word} a step", "ms a step", "share"),
        tuple((name, launches(kernels), milliseconds(us), share(us, total)) for name, kernels, us in rows),
        range(1, 4),
    )


def share(part: float, whole: float) -> str:
    """A part of a whole in percent, one decimal."""
    return percent(part / whole, 1) if whole else MISSING


def place_table(profile: Profile, stage: Stage, costs: Sequence[Cost], most: int) -> Table:
    """Sites and modules with traffic; what is beyond ``most`` rows stands summed in the last one."""
    named = [(code(cost.name), _what(cost), _classes(cost)) for cost in costs[:most]]
    return _cost_table(("Site or module", "what", "classes"), named, profile, stage, costs, most)


def line_table(profile: Profile, stage: Stage, costs: Sequence[Cost], most: int) -> Table:
    """Lines of code with the site or module that they work for, and traffic."""
    named = [(code(cost.line), code(_place_of(cost)), _classes(cost)) for cost in costs[:most]]
    return _cost_table(("Line", "site or module", "class"), named, profile, stage, costs, most)


def _cost_table(
    head: tuple[str, str, str],
    named: Sequence[tuple[Text, Text, Text]],
    profile: Profile,
    stage: Stage,
    costs: Sequence[Cost],
    most: int,
) -> Table:
    total = stage.device_us / stage.steps
    rows: list[tuple[Text, ...]] = [
        (
            *names,
            launches(cost.kernels),
            milliseconds(cost.device_us),
            share(cost.device_us, total),
            MISSING if cost.bytes is None else number(cost.bytes / 1e6, 1),
            bandwidth(cost.bandwidth_gb_s),
            milliseconds(cost.floor_us),
            MISSING if cost.distance is None else f"{number(cost.distance, 1)}×",
        )
        for names, cost in zip(named, costs, strict=False)
    ]
    hidden = costs[most:]
    if hidden:
        us = sum(cost.device_us for cost in hidden)
        told = (f"{len(hidden)} more", "", "", launches(sum(cost.kernels for cost in hidden)), milliseconds(us))
        rows.append((*told, share(us, total), "", "", "", ""))
    numbers = (f"{profile.kernels_word} a step", "ms a step", "share", "MB", "GB/s", "floor ms", "× floor")
    return Table((*head, *numbers), tuple(rows), range(3, 10))


def _place_of(cost: Cost) -> str:
    return f"{cost.name} in {cost.modules[0]}" if cost.is_site and cost.modules else cost.name


def _classes(cost: Cost) -> str:
    return ", ".join(class_title(name) for name in cost.classes[:2])


def _what(cost: Cost) -> str:
    if not cost.is_site:
        return cost.component
    return f"site, {cost.state}" if cost.state else "site"


def chain_table(chains: Sequence[Chain], most: int, *, has_tensor: bool) -> Table:
    """Fusable chains, the largest saving first; ``has_tensor`` shows the tensor that they pass on."""
    rows = tuple(
        (
            number(chain.saving_us_per_step, 1),
            number(chain.device_us_per_step, 1),
            number(chain.fused_floor_us_per_step, 1),
            number(chain.calls_per_step, 0 if chain.calls_per_step == int(chain.calls_per_step) else 2),
            code(chain.module or OUTSIDE),
            code(" + ".join(name.removeprefix("aten::") for name in chain.operations), 3 * LONGEST_NAME),
            *([code(chain.shape)] if has_tensor else []),
            code(chain.line),
            chain_path(chain),
        )
        for chain in ranked(chains)[:most]
    )
    head = ("saves µs a step", "takes", "fused floor", "times a step", "module", "operations")
    return Table((*head, *(["tensor"] if has_tensor else []), "line", "fast path"), rows, range(4))


def ranked(chains: Sequence[Chain]) -> list[Chain]:
    """By what fusing saves, then by what they take; a chain whose saving is not known comes last."""

    def order(chain: Chain) -> tuple[bool, float, float, str]:
        saving = chain.saving_us_per_step
        return (saving is None, -(saving or 0.0), -chain.device_us_per_step, chain.module)

    return sorted(chains, key=order)


def chain_path(chain: Chain) -> str:
    """The fast path that exists for a chain, and why it did not engage."""
    if chain.fast_path is None:
        return "none exists"
    reason = chain.fast_path_reason
    return f"{chain.fast_path}: {shortened(reason, LONGEST_REASON) if reason else 'no reason known'}"


def site_table(profile: Profile) -> Table:
    """What became of every site, and what its first sights cost."""
    rows = tuple(
        (
            code(site.site),
            site.state,
            str(site.calls_fused),
            str(site.calls_eager),
            number(site.first_sight_ms, 1),
            number(site.jit_ms, 1),
            shortened(site.reason, LONGEST_REASON) if site.reason else "",
        )
        for site in sorted(profile.sites, key=_told_first)
    )
    return Table(
        ("Site", "state", "fused calls", "eager calls", "first sight ms", "JIT ms", "reason"), rows, range(2, 6)
    )


def _told_first(site: SiteRecord) -> tuple[bool, str]:
    return (site.state != "fused", site.site)


def key_table(profile: Profile, most: int) -> Table | None:
    """How often each site was called with which key and layout; None where none was."""
    found = [(site.site, key) for site in profile.sites for key in site.keys]
    found.sort(key=lambda one: (one[0], -one[1].calls, one[1].key))
    rows: list[tuple[Text, ...]] = [
        (code(name), str(key.calls), key.layout or MISSING, code(key.key, 2 * LONGEST_NAME))
        for name, key in found[:most]
    ]
    if len(found) > most:
        more = found[most:]
        rows.append((f"{len(more)} more", str(sum(key.calls for _, key in more)), "", ""))
    return Table(("Site", "calls", "layout", "key"), tuple(rows), range(1, 2)) if rows else None
