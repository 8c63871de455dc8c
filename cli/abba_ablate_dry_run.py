"""``abba --ablate fastpaths --dry-run`` as text: a line a fast path with the slots of its two arms; what is idle."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fuseproof.cli.abba_ablate_sites import needs_a_card

if TYPE_CHECKING:
    from fuseproof.harness.campaign.estimates import DryRun
    from fuseproof.harness.machine.gpus import GpuSurvey
    from fuseproof.schedules.ablation import Ablation, Units
    from fuseproof.schedules.plan import Plan

WIDTH = 80
OFF, ALL = "A: no fast path (--fastpaths=off)", "B: all fast paths (--fastpaths=auto)"


def unit_lines(plan: Plan, planned: DryRun) -> Iterator[str]:
    """Arms A and B, then each unit: the arms that have it alone and left out, with their places in the first block.

    An arm of another name that has the same fast paths stands for one that would be equal, and is named.
    """
    ablation = plan.ablation
    if ablation is None:
        raise AssertionError("only an ablation has units")
    arms = _Arms(plan, ablation, planned)
    yield f"{len(plan.letters)} arms, by letter; in brackets their places in the first block"
    yield f"  {OFF} {arms.places('A')}"
    yield f"  {ALL} {arms.places('B')}"
    rows = [(unit, arms.alone(unit), arms.left_out(unit)) for unit in ablation.units]
    head = ("fast path", "alone" if ablation.by != "without" else "", "left out" if ablation.by != "alone" else "")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(2)]
    for row in (head, *rows):
        yield from _wrapped(f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}".rstrip())
    for unit, sites in ablation.units.items():
        if sites != (unit,):
            yield from _wrapped(f"  {unit}: {', '.join(sites)}")
    yield from _wrapped(f"  {text}" for text in arms.standing_for())


def order_lines(planned: DryRun) -> Iterator[str]:
    """Each order of slots once, with the blocks that have it."""
    blocks: dict[str, dict[str, None]] = {}
    warm_ups = 0
    for slot, _ in planned.slots:
        blocks.setdefault(slot.orientation, {})[f"{slot.cell}/{slot.block:02d}"] = None
        warm_ups += slot.kind == "warmup"
    for orientation, names in blocks.items():
        yield from _wrapped(f"  {', '.join(names)}: {orientation}")
    if warm_ups:
        yield f"  before them {warm_ups} warm-up slot{'' if warm_ups == 1 else 's'}, place 0, discarded"


def idle_remark(plan: Plan, survey: GpuSurvey) -> str | None:
    """Which units will decline on this machine, whose arms then measure nothing; None with a card, or without units."""
    if plan.ablation is None or survey.gpus:
        return None
    units = plan.ablation.units
    idle = [unit for unit, sites in units.items() if all(map(needs_a_card, sites))]
    partly = {unit: [site for site in sites if needs_a_card(site)] for unit, sites in units.items() if unit not in idle}
    more = [f"of {unit}, {', '.join(sites)} decline" for unit, sites in partly.items() if sites]
    if not idle and not more:
        return None
    whole = f"{len(idle)} of {len(units)} units decline in every slot, and their arms measure nothing"
    what = "; ".join(([f"{whole} ({', '.join(idle)})"] if idle else []) + more)
    return f"no CUDA device here: {what}; run it on a machine with a card, or single out what is left with --only"


class _Arms:
    """Letters by the units in force, and the places of an arm in the first block."""

    def __init__(self, plan: Plan, ablation: Ablation, planned: DryRun) -> None:
        self._ablation = ablation
        self._letter: dict[str, str] = {plan.key_of(letter): letter for letter in plan.letters}
        self._name: dict[str, str] = {letter: plan.arm(letter).name for letter in plan.letters}
        first = next((slot.cell, slot.block) for slot, _ in planned.slots)
        self._places: dict[str, list[str]] = {}
        for slot, _ in planned.slots:
            if (slot.cell, slot.block) == first and slot.kind != "warmup":
                self._places.setdefault(slot.arm, []).append(str(slot.position))
        self._others: dict[str, list[str]] = {}

    def places(self, letter: str) -> str:
        return f"[{', '.join(self._places.get(letter, ()))}]"

    def alone(self, unit: str) -> str:
        if self._ablation.by == "without":
            return ""
        needed = self._ablation.needed_by(unit)
        over = f" over {self._letter_of(needed)}" if needed else ""
        return f"{self._arm(f'alone:{unit}', needed | {unit})}{over}"

    def left_out(self, unit: str) -> str:
        if self._ablation.by == "alone":
            return ""
        along = self._ablation.needing(unit)
        text = self._arm(f"without:{unit}", frozenset(self._ablation.units) - {unit} - along)
        return text + (f", with {', '.join(sorted(along))}" if along else "")

    def standing_for(self) -> list[str]:
        """``E, alone:packed_blocks, is without:modulation as well: the same fast paths``."""
        return [
            f"{letter}, {self._name[letter]}, stands for {', '.join(names)}: the same fast paths, so one arm"
            for letter, names in self._others.items()
        ]

    def _letter_of(self, units: Units) -> str:
        return self._letter[self._ablation.key_of[units]]

    def _arm(self, name: str, units: Units) -> str:
        letter = self._letter_of(units)
        if self._name[letter] != name:
            self._others.setdefault(letter, []).append(name)
        return f"{letter} {self.places(letter)}"


def _wrapped(texts: str | Iterable[str]) -> Iterator[str]:
    lines: Sequence[str] = [texts] if isinstance(texts, str) else [*texts]
    for line in lines:
        yield from textwrap.wrap(
            line, WIDTH, subsequent_indent="      ", break_on_hyphens=False, break_long_words=False
        )
