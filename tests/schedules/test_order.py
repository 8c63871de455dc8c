"""Which arm runs when."""

from __future__ import annotations

import pytest

from fuseproof.errors import UsageError
from fuseproof.schedules.order import (
    arms_in_order,
    first_pass,
    labels_in_order,
    orientation,
    timed_slots,
    warmup_slots,
)


def test_mirrored_order_is_thue_morse() -> None:
    expected = ["ABBA", "BAAB", "BAAB", "ABBA", "BAAB", "ABBA", "ABBA", "BAAB"]
    assert expected == [orientation(index) for index in range(8)]


@pytest.mark.parametrize(
    ("arms", "order", "expected"),
    [
        pytest.param(3, "mirrored", ["ABCCBA", "BCAACB", "CABBAC", "ABCCBA"], id="three"),
        pytest.param(4, "mirrored", ["ABCDDCBA", "BCDAADCB", "CDABBADC", "DABCCBAD"], id="four"),
        pytest.param(3, "ABBA", ["ABCCBA"] * 4, id="one order repeated"),
    ],
)
def test_more_arms_move_one_place_on(arms: int, order: str, expected: list[str]) -> None:
    assert expected == [orientation(index, order, arms) for index in range(4)]
    labels = labels_in_order(expected[0])
    assert sorted(f"{arm}{run}" for arm in "ABCD"[:arms] for run in (1, 2)) == sorted(labels)
    assert ("A1", "A2") == (labels[0], labels[-1])


@pytest.mark.parametrize(("count", "expected"), [(0, []), (1, ["B"]), (2, ["A", "C", "B"])])
def test_every_arm_of_several_warms_up(count: int, expected: list[str]) -> None:
    assert expected == [slot.arm for slot in warmup_slots("panda", 2, 1, "BCAACB", count)]


def test_plain_order_never_mirrors() -> None:
    assert ["ABBA"] * 8 == [orientation(index, "ABBA") for index in range(8)]


@pytest.mark.parametrize(
    ("blocks", "power"),
    [pytest.param(2, 2, id="two-blocks-quadratic"), pytest.param(4, 3, id="four-blocks-cubic")],
)
def test_mirrored_order_cancels_drift_up_to(blocks: int, power: int) -> None:
    """The arms' sums of t^p agree for every p up to ``power``."""
    slots = [arm for index in range(blocks) for arm in arms_in_order(orientation(index))]
    for exponent in range(power + 1):
        sums = {"A": 0, "B": 0}
        for moment, arm in enumerate(slots):
            sums[arm] += moment**exponent
        assert sums["A"] == sums["B"], exponent


@pytest.mark.parametrize(
    ("direction", "arms", "labels"),
    [
        pytest.param("ABBA", ("A", "B", "B", "A"), ("A1", "B1", "B2", "A2"), id="ABBA"),
        pytest.param("BAAB", ("B", "A", "A", "B"), ("B1", "A1", "A2", "B2"), id="BAAB"),
    ],
)
def test_arms_and_labels(direction: str, arms: tuple[str, ...], labels: tuple[str, ...]) -> None:
    assert arms == arms_in_order(direction)  # type: ignore[arg-type]
    assert labels == labels_in_order(direction)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("index", "order", "named"),
    [
        pytest.param(-1, "mirrored", "-1", id="negative-index"),
        pytest.param(0, "BABA", "BABA", id="unknown-order"),
    ],
)
def test_bad_orders_are_refused(index: int, order: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        orientation(index, order)


def test_slot_ids_name_block_attempt_position_and_arm() -> None:
    first = [slot.id for slot in timed_slots("panda", 1, 1, "ABBA")]
    again = [slot.id for slot in timed_slots("panda", 2, 3, "BAAB")]
    assert ["panda/01-1-A", "panda/01-2-B", "panda/01-3-B", "panda/01-4-A"] == first
    assert ["panda/02.3-1-B", "panda/02.3-2-A", "panda/02.3-3-A", "panda/02.3-4-B"] == again


@pytest.mark.parametrize(
    ("direction", "count", "ids"),
    [
        pytest.param("ABBA", 0, [], id="none"),
        pytest.param("ABBA", 1, ["panda/01-0-A"], id="the-first-arm"),
        pytest.param("BAAB", 1, ["panda/01-0-B"], id="the-first-arm-mirrored"),
        pytest.param("ABBA", 2, ["panda/01-0-B", "panda/01-0-A"], id="both-first-arm-last"),
    ],
)
def test_warmup_slots(direction: str, count: int, ids: list[str]) -> None:
    slots = warmup_slots("panda", 1, 1, direction, count)  # type: ignore[arg-type]
    assert ids == [slot.id for slot in slots]
    assert {"warmup"} >= {slot.kind for slot in slots}


def test_first_pass_warms_up_once_per_cell() -> None:
    slots = list(first_pass({"one": 2, "two": 2, "three": 1}, "mirrored", 1))
    assert "A ABBA BAAB A ABBA BAAB A ABBA".replace(" ", "") == "".join(slot.arm for slot in slots)
    assert ["one/01-0-A", "two/01-0-A", "three/01-0-A"] == [slot.id for slot in slots if slot.kind == "warmup"]
    assert len(slots) == len({slot.id for slot in slots})
