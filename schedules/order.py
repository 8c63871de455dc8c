"""In which order the slots of a campaign run: A-B-B-A, mirrored where the Thue-Morse sequence says so.

A block holds two slots of each arm around a common centre, so a linear drift of the machine costs both arms the same.
A single A-B-B-A block cannot tell curvature from an effect; mirroring every block whose index has an odd number of
one-bits (ABBA BAAB BAAB ABBA ...) cancels quadratic drift over two blocks and cubic drift over four.

Three or more arms run as a palindrome too (A-B-C-C-B-A). There mirrored order moves every arm one place on from block
to block (ABCCBA BCAACB CABBAC), so that after as many blocks as there are arms each has had every place once. More than
eight arms, which an ablation has, seldom get as many blocks: there they move on by about half a block, so that what ran
at the edges of one block runs near the middle of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator

from fuseproof.errors import UsageError

Order = Literal["mirrored", "ABBA"]
ArmLetter = Literal[
    "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M",
    "N", "O", "P", "Q", "R", "S", "T", "U", "V", "W", "X", "Y", "Z",
]  # fmt: skip
SlotKind = Literal["timed", "warmup"]

ORDERS: tuple[Order, ...] = ("mirrored", "ABBA")
SLOTS_PER_BLOCK = 4
"""Of two arms; a plan knows its own number."""
LETTERS: tuple[ArmLetter, ...] = get_args(ArmLetter)
"""The arms in order: A is the baseline, all others are candidates."""
MOST_ARMS = 8
"""Of a plan that somebody wrote; an ablation has as many as there are letters."""


def _checked_orientation(text: str) -> str:
    half = text[: len(text) // 2]
    if half + half[::-1] != text or sorted(half) != list(LETTERS[: len(half)]) or len(half) < 2:
        raise ValueError("an orientation is ABBA, BAAB, or of more arms a palindrome such as ABCCBA")
    return text


Orientation = Annotated[str, AfterValidator(_checked_orientation)]
"""The arms of a block's slots in the order they run."""


def letters_of(arms: int) -> tuple[ArmLetter, ...]:
    """The letters of a campaign with ``arms`` arms."""
    return LETTERS[:arms]


def arm_word(letter: str) -> str:
    """``baseline``, ``candidate``, or, of the third arm and beyond, ``candidate C``."""
    return {"A": "baseline", "B": "candidate"}.get(letter, f"candidate {letter}")


def orientation(block_index: int, order: str = "mirrored", arms: int = 2) -> Orientation:
    """Which way round block ``block_index`` (from 0) runs under ``order`` ("mirrored" or "ABBA")."""
    if block_index < 0:
        raise UsageError(f"block index {block_index} is negative; blocks count from 0")
    if order not in ORDERS:
        raise UsageError(f"order {order!r} is unknown; it is one of {', '.join(ORDERS)}")
    moved = block_index.bit_count() % 2 if arms == 2 else block_index * _places_on(arms) % arms
    moved = moved if order == "mirrored" else 0
    letters = "".join(letters_of(arms))
    half = letters[moved:] + letters[:moved]
    return half + half[::-1]


def _places_on(arms: int) -> int:
    """How far every arm moves from block to block; it and ``arms`` have no common divisor, so every place is met."""
    if arms <= MOST_ARMS:
        return 1
    return next(step for step in range(arms // 2, arms) if gcd(step, arms) == 1)


def arms_in_order(orientation: Orientation) -> tuple[ArmLetter, ...]:
    """The arm of each of a block's slots, in the order they run."""
    by_letter = {str(letter): letter for letter in LETTERS}
    return tuple(by_letter[letter] for letter in orientation)


def labels_in_order(orientation: Orientation) -> tuple[str, ...]:
    """The slots' labels in the order they run: A1 B1 B2 A2, or B1 A1 A2 B2, or A1 B1 C1 C2 B2 A2."""
    half = len(orientation) // 2
    return tuple(f"{arm}{1 if slot < half else 2}" for slot, arm in enumerate(orientation))


@dataclass(frozen=True)
class PlannedSlot:
    """One fresh process that will run one arm once.

    ``block`` and ``attempt`` count from 1. ``position`` is 1 to 4 inside a block (two slots an arm: to 6 with three)
    and 0 for a discarded warm-up slot, which runs before the block and is never part of a number.
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
    """The discarded slots before a block: none, one of the block's first arm, or (2) one of every arm, that one last.

    The last warm-up slot is the first slot's own arm, so that the first timed slot follows a run of its own kind.
    """
    half = arms_in_order(direction)[: len(direction) // 2]
    arms = ((), half[:1], half[::-1])[count]
    return tuple(PlannedSlot(cell, block, attempt, 0, arm, f"warm-up {arm}", direction, "warmup") for arm in arms)


def timed_slots(cell: str, block: int, attempt: int, direction: Orientation) -> tuple[PlannedSlot, ...]:
    """The slots of one attempt at a block, two an arm, in the order they run."""
    arms_and_labels = zip(arms_in_order(direction), labels_in_order(direction), strict=True)
    return tuple(
        PlannedSlot(cell, block, attempt, position, arm, label, direction, "timed")
        for position, (arm, label) in enumerate(arms_and_labels, start=1)
    )


def first_pass(blocks: Mapping[str, int], order: str, warmups: int, arms: int = 2) -> Iterator[PlannedSlot]:
    """Every slot of an undisturbed campaign, in the order they run: what ``--dry-run`` lists.

    ``blocks`` maps each cell to the number of its blocks, in the order of the cells.
    """
    for cell, count in blocks.items():
        for index in range(count):
            direction = orientation(index, order, arms)
            if index == 0:
                yield from warmup_slots(cell, 1, 1, direction, warmups)
            yield from timed_slots(cell, index + 1, 1, direction)
