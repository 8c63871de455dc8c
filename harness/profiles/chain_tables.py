"""Fusable chains by stage: what one kernel in their place would save at most, and the fast path that exists for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuseproof.harness.number_format import number, shortened
from fuseproof.harness.profiles.costs import OUTSIDE
from fuseproof.harness.profiles.profile import Chain, Profile, Stage
from fuseproof.harness.profiles.tables import DISTURBED, LONGEST_NAME, LONGEST_REASON, code, launches, unit_of, yes
from fuseproof.harness.profiles.usual import chain_is_disturbed
from fuseproof.harness.report.document import Paragraph, Part, Table, Text

NONE_LEFT = "No run of two or more pointwise kernels on one tensor is left."
NO_PROMISE = (
    "Saves: what they take less the floor of what comes in and goes out. It is an upper bound for one kernel in their "
    "place, not a promise."
)


def chain_parts(profile: Profile, most: int, most_of_others: int, *, has_tensor: bool) -> Iterator[Part]:
    """One table for each stage that has chains, the main one first: a step's times never stand among a pass's."""
    stages = [profile.main_stage, *(stage for stage in profile.stages if stage is not profile.main_stage)]
    by_stage = [(stage, ranked([one for one in profile.chains if one.stage == stage.name])) for stage in stages]
    by_stage = [(stage, chains) for stage, chains in by_stage if chains]
    if not by_stage:
        yield Paragraph(NONE_LEFT)
        return
    for stage, chains in by_stage:
        if len(by_stage) > 1 or stage is not profile.main_stage:
            yield Paragraph(f"{stage.name}, {_measure(stage)}:")
        shown = most if stage is profile.main_stage else most_of_others
        yield chain_table(profile, stage, chains[:shown], has_tensor=has_tensor)
        if len(chains) > shown:
            yield Paragraph(f"{len(chains) - shown} more, each of them costing less; profile.json holds them.")
    if any(one.calls_per_step != int(one.calls_per_step) for _, chains in by_stage for one in chains[:most]):
        yield Paragraph("A fraction of times a step: some of the profiled steps had it more often than others.")
    if any(one.saving_us_per_step is not None for one in profile.chains):
        yield Paragraph(NO_PROMISE)
    elif profile.device.no_saving_reason is not None:
        yield Paragraph(f"No saving is given: {shortened(profile.device.no_saving_reason, 500)}.")
    first = by_stage[0][1][0]
    if first.fast_path is not None:
        yield Paragraph(f"For the first there is a fast path: {chain_path(first)}.")


def chain_table(profile: Profile, stage: Stage, chains: Sequence[Chain], *, has_tensor: bool) -> Table:
    """``chains`` of one stage as they come; ``has_tensor`` shows the tensor that they pass on."""
    unit = unit_of(stage)
    has_saving = any(one.saving_us_per_step is not None for one in chains)
    has_typical = any(one.typical_us_per_step is not None for one in chains)
    numbers: dict[str, list[str]] = {}
    if has_saving:
        numbers[f"saves µs {unit}"] = [number(one.saving_us_per_step, 1) for one in chains]
    if has_typical:
        numbers[f"typical µs {unit}"] = [number(one.typical_us_per_step, 1) for one in chains]
    disturbed = [chain_is_disturbed(profile, one) for one in chains]
    if any(disturbed):
        numbers[DISTURBED] = list(map(yes, disturbed))
    numbers[f"takes µs {unit}"] = [number(one.device_us_per_step, 1) for one in chains]
    if has_saving:
        numbers["fused floor µs"] = [number(one.fused_floor_us_per_step, 1) for one in chains]
    numbers[f"times {unit}"] = [launches(one.calls_per_step) for one in chains]
    names = ("module", "operations", *(["tensor"] if has_tensor else []), "line", "fast path")
    rows = tuple(
        (*cells, *_names(one, has_tensor=has_tensor))
        for cells, one in zip(zip(*numbers.values(), strict=True), chains, strict=True)
    )
    return Table((*numbers, *names), rows, range(len(numbers)))


def _names(chain: Chain, *, has_tensor: bool) -> tuple[Text, ...]:
    owner = chain.module or (f"site {chain.site}" if chain.site else OUTSIDE)
    return (
        code(owner),
        code(" + ".join(name.removeprefix("aten::") for name in chain.operations), 3 * LONGEST_NAME),
        *([code(chain.shape)] if has_tensor else []),
        code(chain.line),
        chain_path(chain),
    )


def _measure(stage: Stage) -> str:
    return "of its one pass" if stage.steps_of_request == 1 else f"of one step of {stage.steps_of_request}"


def ranked(chains: Sequence[Chain]) -> list[Chain]:
    """By what fusing saves, then by what they usually take; a chain whose saving is not known comes last."""

    def order(chain: Chain) -> tuple[bool, float, float, str]:
        saving = chain.saving_us_per_step
        return (saving is None, -(saving or 0.0), -chain.usual_us_per_step, chain.module)

    return sorted(chains, key=order)


def chain_path(chain: Chain) -> str:
    """The fast path that exists for a chain, and why it did not engage."""
    if chain.fast_path is None:
        return "none exists"
    reason = chain.fast_path_reason
    return f"{chain.fast_path}: {shortened(reason, LONGEST_REASON) if reason else 'no reason known'}"
