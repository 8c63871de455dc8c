"""In which order the slots of a campaign run: A-B-B-A, mirrored where the Thue-Morse sequence says so.

A block holds two slots of each arm around a common centre, so a linear drift of the machine costs both arms the same.
A single A-B-B-A block cannot tell curvature from an effect; mirroring every block whose index has an odd number of
one-bits (ABBA BAAB BAAB ABBA ...) cancels quadratic drift over two blocks and cubic drift over four.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from fuseproof.errors import UsageError

Orientation = Literal["ABBA", "BAAB"]
Order = Literal["mirrored", "ABBA"]
ArmLetter = Literal["A", "B"]
SlotKind = Literal["timed", "warmup"]

ORDERS: tuple[Order, ...] = ("mirrored", "ABBA")
SLOTS_PER_BLOCK = 4

_ARMS: dict[Orientation, tuple[ArmLetter, ArmLetter, ArmLetter, ArmLetter]] = {
    "ABBA": ("A", "B", "B", "A"),
    "BAAB": ("B", "A", "A", "B"),
}


def orientation(block_index: int, order: str = "mirrored") -> Orientation:
    """Which way round block ``block_index`` (from 0) runs under ``order`` ("mirrored" or "ABBA")."""
    if block_index < 0:
        raise UsageError(f"block index {block_index} is negative; blocks count from 0")
    if order not in ORDERS:
        raise UsageError(f"order {order!r} is unknown; it is one of {', '.join(ORDERS)}")
    is_mirrored = order == "mirrored" and block_index.bit_count() % 2 == 1
    return "BAAB" if is_mirrored else "ABBA"


def arms_in_order(orientation: Orientation) -> tuple[ArmLetter, ArmLetter, ArmLetter, ArmLetter]:
    """The arm of each of a block's four slots, in the order they run."""
    return _ARMS[orientation]


def labels_in_order(orientation: Orientation) -> tuple[str, str, str, str]:
    """The slots' labels in the order they run: A1 B1 B2 A2, or B1 A1 A2 B2."""
    first, second, third, fourth = _ARMS[orientation]
    return f"{first}1", f"{second}1", f"{third}2", f"{fourth}2"


@dataclass(frozen=True)
class PlannedSlot:
    """One fresh process that will run one arm once.

    ``block`` and ``attempt`` count from 1. ``position`` is 1 to 4 inside a block and 0 for a discarded warm-up slot,
    which runs before the block and is never part of a number.
    """

    cell: str
    block: int
    attempt: int
    position: int
    arm: ArmLetter
    label: str
    orientation: Orientation
    kind: SlotKind

    @property
    def id(self) -> str:
        """``panda/01-1-A``; the second attempt of the block is ``panda/01.2-1-A``. Also the slot's folder."""
        attempt = "" if self.attempt == 1 else f".{self.attempt}"
        return f"{self.cell}/{self.block:02d}{attempt}-{self.position}-{self.arm}"


def warmup_slots(cell: str, block: int, attempt: int, direction: Orientation, count: int) -> tuple[PlannedSlot, ...]:
    """The discarded slots before a block, at most one per arm; the block's first arm warms up last.

    The last warm-up slot is the first slot's own arm, so that the first timed slot follows a run of its own kind.
    """
    first, second, _, _ = arms_in_order(direction)
    arms = ((), (first,), (second, first))[count]
    return tuple(PlannedSlot(cell, block, attempt, 0, arm, f"warm-up {arm}", direction, "warmup") for arm in arms)


def timed_slots(cell: str, block: int, attempt: int, direction: Orientation) -> tuple[PlannedSlot, ...]:
    """The four slots of one attempt at a block, in the order they run."""
    arms_and_labels = zip(arms_in_order(direction), labels_in_order(direction), strict=True)
    return tuple(
        PlannedSlot(cell, block, attempt, position, arm, label, direction, "timed")
        for position, (arm, label) in enumerate(arms_and_labels, start=1)
    )


def first_pass(blocks: Mapping[str, int], order: str, warmups: int) -> Iterator[PlannedSlot]:
    """Every slot of an undisturbed campaign, in the order they run: what ``--dry-run`` lists.

    ``blocks`` maps each cell to the number of its blocks, in the order of the cells.
    """
    for cell, count in blocks.items():
        for index in range(count):
            direction = orientation(index, order)
            if index == 0:
                yield from warmup_slots(cell, 1, 1, direction, warmups)
            yield from timed_slots(cell, index + 1, 1, direction)
