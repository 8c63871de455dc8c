"""The tables of a profile, as parts of a document: stages, by class, by site and module, by line."""

from __future__ import annotations

from collections.abc import Sequence

from fuseproof.harness.number_format import MISSING, count, number, percent
from fuseproof.harness.profiles.costs import Cost, by_class
from fuseproof.harness.profiles.profile import Profile, Stage
from fuseproof.harness.report.document import Code, Table, Text

LONGEST_NAME = 90
LONGEST_REASON = 160
DISTURBED = "disturbed"
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
    """GB/s in three digits or more."""
    return number(gb_s, 0 if gb_s is None or gb_s >= 100 else 1 if gb_s >= 10 else 2)


def yes(is_so: bool) -> str:
    """A cell that only speaks where something is so."""
    return "yes" if is_so else ""


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
    unit = unit_of(stage)
    return Table(
        ("Class", f"{profile.kernels_word} {unit}", f"ms {unit}", "share"),
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
    has_typical = tells_typical(profile)
    rows: list[tuple[Text, ...]] = [
        (
            *names,
            launches(cost.kernels),
            *([milliseconds(cost.usual_us), yes(cost.is_disturbed)] if has_typical else []),
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
        us, usual_us = sum(cost.device_us for cost in hidden), sum(cost.usual_us for cost in hidden)
        typical = [milliseconds(usual_us), ""] if has_typical else []
        told = (f"{len(hidden)} more", "", "", launches(sum(cost.kernels for cost in hidden)), *typical)
        rows.append((*told, milliseconds(us), share(us, total), "", "", "", ""))
    unit = unit_of(stage)
    typical = [f"typical ms {unit}", DISTURBED] if has_typical else []
    numbers = (f"{profile.kernels_word} {unit}", *typical, f"ms {unit}", "share", "MB", "GB/s", "floor ms", "× floor")
    return Table((*head, *numbers), tuple(rows), range(3, 3 + len(numbers)))


def unit_of(stage: Stage) -> str:
    """What the numbers of a stage's tables are of: one step, or its one pass."""
    return "a step" if stage.steps_of_request > 1 else "a pass"


def tells_typical(profile: Profile) -> bool:
    """Whether some row's typical time is another than its sum, which is when both are shown."""
    return any(one.is_disturbed for one in profile.usual.values())


def _place_of(cost: Cost) -> str:
    return f"{cost.name} in {cost.modules[0]}" if cost.is_site and cost.modules else cost.name


def _classes(cost: Cost) -> str:
    return ", ".join(class_title(name) for name in cost.classes[:2])


def _what(cost: Cost) -> str:
    if not cost.is_site:
        return cost.component
    return f"site, {cost.state}" if cost.state else "site"
