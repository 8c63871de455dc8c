"""Are the files of A-B-B-A blocks in slot order? What the dumps know of themselves shows an arm that is two programs,
blocks whose arms are exchanged, and one run that poses as two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fuseproof.harness.perf.blocks import AbbaBlock, parse_order
from fuseproof.harness.perf.dump import PerfDump
from fuseproof.harness.perf.work import IRRELEVANT_FLAGS, check_equal_work, flag_kind, value_text
from fuseproof.harness.statistics.verdict import Reason
from fuseproof.schedules.order import Orientation

ARM_FLAGS = ("backend", "fastpaths", "gate", "quality", "dtype", "device", "attention_backend", "enable_torch_compile")
"""Flags that make an arm what it is: two runs of one arm that differ here are two arms."""

_EXCHANGED: dict[Orientation, Orientation] = {"ABBA": "BAAB", "BAAB": "ABBA"}

Program = dict[str, Any]
"""Key → value of what makes one arm of one block the program it is; None where a dump does not say."""


def slot_order_obstacles(blocks: Sequence[AbbaBlock]) -> tuple[Reason, ...]:
    """Everything that shows the files not to be the slots they were given as; empty when nothing does."""
    return (*_mixed_arms(blocks), *_swapped_arms(blocks), *_repeated_runs(blocks))


def _mixed_arms(blocks: Sequence[AbbaBlock]) -> Iterator[Reason]:
    for block in blocks:
        for arm in "AB":
            (first_label, first), (second_label, second) = block.of_arm(arm)
            mixed = [
                str(difference)
                for difference in check_equal_work(first, second, judges_speed=False).notes
                if difference.field in {"commit", "dump schema", *ARM_FLAGS}
            ]
            if mixed:
                detail = f"arm {arm} of block {block.name} is not one program in {first_label} and {second_label}"
                advice = "Give the files in slot order, A1 B1 B2 A2, or name the order with --order."
                yield Reason("ARM_MIXED", f"{detail}: {'; '.join(mixed)}", advice)


def _swapped_arms(blocks: Sequence[AbbaBlock]) -> tuple[Reason, ...]:
    """A program that is the baseline of one block and the candidate of another: the files are not in slot order.

    Other flags than those that make an arm count only where those are the same in both arms, and only when the two
    blocks exchange them altogether: they may be counterbalanced on purpose.
    """
    programs = [(_program(block, "A"), _program(block, "B")) for block in blocks]
    found = _exchange(programs, lambda one, other: one[0] == other[1] != one[1])
    if found is None and all(baseline == candidate for baseline, candidate in programs):
        programs = [(_other_flags(block, "A"), _other_flags(block, "B")) for block in blocks]
        for key in dict.fromkeys(key for baseline, _ in programs for key in baseline):
            one_key = [({key: baseline.get(key)}, {key: candidate.get(key)}) for baseline, candidate in programs]
            found = found or _exchange(one_key, lambda one, other: one[0] == other[1] != one[1] == other[0])
    return () if found is None else (_swapped(blocks, *found),)


def _exchange(
    programs: Sequence[tuple[Program, Program]],
    is_exchanged: Callable[[tuple[Program, Program], tuple[Program, Program]], bool],
) -> tuple[int, int, Sequence[tuple[Program, Program]]] | None:
    pairs = ((one, other) for one in range(len(programs)) for other in range(len(programs)))
    return next(((*pair, programs) for pair in pairs if is_exchanged(programs[pair[0]], programs[pair[1]])), None)


def _swapped(blocks: Sequence[AbbaBlock], one: int, other: int, programs: Sequence[tuple[Program, Program]]) -> Reason:
    baseline, candidate = programs[one]
    keys = [key for key in baseline if baseline[key] != candidate.get(key)]
    shown = " and ".join(f"{key} ({value_text(baseline[key])})" for key in keys)
    verb = "shows" if len(keys) == 1 else "show"
    detail = f"the baseline of block {one + 1} is the candidate of block {other + 1}; {shown} {verb} it"
    order = _order_that_fits(blocks, programs)
    if order is None:
        return Reason("ARMS_SWAPPED", detail, "Name each block's order with --order, for example ABBA,BAAB.")
    return Reason("ARMS_SWAPPED", detail, f"Read the same files in the order in which they ran: --order {order}.")


def _order_that_fits(blocks: Sequence[AbbaBlock], programs: Sequence[tuple[Program, Program]]) -> str | None:
    """The ``--order`` under which every block has the arms of the first one, as that was read; None without one."""
    first = programs[0]
    orientations: list[Orientation] = []
    for block, arms in zip(blocks, programs, strict=True):
        if sorted(map(repr, arms)) != sorted(map(repr, first)):
            return None
        orientations.append(block.orientation if arms == first else _EXCHANGED[block.orientation])
    if tuple(orientations) == parse_order("mirrored", len(blocks)) and len(blocks) > 1:
        return "mirrored"
    return orientations[0] if len(set(orientations)) == 1 else ",".join(orientations)


def _program(block: AbbaBlock, arm: str) -> Program:
    dump = block.of_arm(arm)[0][1]
    return {"commit": dump.short_commit} | {flag: dump.config.get(flag) for flag in ARM_FLAGS}


def _other_flags(block: AbbaBlock, arm: str) -> Program:
    """Flags beyond :data:`ARM_FLAGS` that are no part of the request and that both runs of the arm agree in."""
    (_, first), (_, second) = block.of_arm(arm)
    return {flag: value for flag, value in first.config.items() if _tells_arms_apart(flag, first, second)}


def _tells_arms_apart(flag: str, first: PerfDump, second: PerfDump) -> bool:
    is_other = flag in ARM_FLAGS or flag in IRRELEVANT_FLAGS or flag_kind(flag) != "note"
    return not is_other and flag in second.config and first.config[flag] == second.config[flag]


def _repeated_runs(blocks: Sequence[AbbaBlock]) -> Iterator[Reason]:
    first_with: dict[Any, str] = {}
    for block in blocks:
        for label, dump in zip(block.labels, block.dumps, strict=True):
            identity = (dump.raw.get("request_id"), dump.raw.get("timestamp"))
            earlier = label if identity == (None, None) else first_with.setdefault(repr(identity), label)
            if earlier != label:
                advice = "Every slot needs a run of its own: run the block again."
                yield Reason("REPEATED_RUN", f"{label} holds the same run as {earlier}", advice)
