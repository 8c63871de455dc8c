"""What a report says of blocks that ran side by side, and of cells that saw several cards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuseproof.harness.analysis.placement import card_warnings, most_at_once, side_by_side_text
from fuseproof.harness.analysis.runs import read_cell
from fuseproof.harness.campaign.gpu_records import CardConditions, PhaseConditions, SlotDevice, SlotGpu
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.verification.attempts import attempt_findings
from fuseproof.schedules.order import timed_slots
from tests.harness.test_runner import create


def block(number: int, began_s: int, device: SlotDevice | None = None, gpu: SlotGpu | None = None) -> list[SlotRecord]:
    """Four slots of a second each, from ``began_s`` on."""
    return [
        SlotRecord.planned(
            slot,
            "done",
            started=f"2026-01-01T00:00:{began_s + place:02d}.000+00:00",
            ended=f"2026-01-01T00:00:{began_s + place + 1:02d}.000+00:00",
            started_monotonic_s=began_s + place + 0.0,
            ended_monotonic_s=began_s + place + 1.0,
            device=device,
            gpu=gpu,
        )
        for place, slot in enumerate(timed_slots("cell", number, 1, "ABBA"))
    ]


def worked_on(*uuids: str) -> SlotGpu:
    phase = PhaseConditions(samples=9, utilization_percent=90.0)
    return SlotGpu(cards=tuple(CardConditions(uuid, {"request": phase}) for uuid in uuids))


A, B = SlotDevice(uuid="GPU-a", index=0), SlotDevice(uuid="GPU-b", index=1)


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        pytest.param([*block(1, 0), *block(2, 4)], None, id="no-device"),
        pytest.param([*block(1, 0, A), *block(2, 4, A)], "one block at a time ran, on 1 GPU", id="one-lane"),
        pytest.param(
            [*block(1, 0, A), *block(2, 4, B)], "one block at a time ran, on 2 GPUs", id="one-after-the-other"
        ),
        pytest.param([*block(1, 0, A), *block(2, 3, B)], "up to 2 blocks ran side by side on 2 GPUs; ", id="two"),
        pytest.param(
            [*block(1, 0, replace(A, node="n1")), *block(2, 1, replace(A, uuid="GPU-c", node="n2"))],
            "up to 2 blocks ran side by side on 2 GPUs of 2 Ray nodes; ",
            id="ray-gpus",
        ),
        pytest.param(
            [*block(1, 0, SlotDevice(node="n1")), *block(2, 1, SlotDevice(node="n1"))],
            "up to 2 blocks ran side by side on 1 Ray node, one CPU each; ",
            id="ray-cpus",
        ),
        pytest.param(
            [*block(1, 0, SlotDevice(index=0, node="n1")), *block(2, 1, SlotDevice(index=0, node="n2"))],
            "up to 2 blocks ran side by side on 2 GPUs of 2 Ray nodes; ",
            id="cards-without-uuid",
        ),
    ],
)
def test_how_many_ran_at_once_and_on_what(slots: list[SlotRecord], expected: str | None) -> None:
    text = side_by_side_text(slots)
    assert expected == (text if text is None or ";" not in text else text[: text.index(";") + 2])


def test_a_block_that_begins_when_another_ends_is_not_beside_it() -> None:
    assert 1 == most_at_once([*block(1, 0), *block(2, 4)])
    assert 3 == most_at_once([*block(1, 0), *block(2, 1), *block(3, 2)])
    assert 0 == most_at_once([])


@pytest.mark.parametrize(
    ("first", "second", "is_found"),
    [
        pytest.param(None, None, True, id="one-lane"),
        pytest.param(A, A, True, id="same-card"),
        pytest.param(A, B, False, id="two-cards"),
        pytest.param(SlotDevice(node="n1"), SlotDevice(node="n1"), False, id="cpus-of-one-node"),
        pytest.param(SlotDevice(index=0, node="n1"), SlotDevice(index=0, node="n2"), False, id="two-nodes"),
    ],
)
def test_verify_knows_which_blocks_may_run_at_once(
    tmp_path: Path, first: SlotDevice | None, second: SlotDevice | None, is_found: bool
) -> None:
    slots = [*block(1, 0, first), *block(2, 2, second)]
    campaign = create(tmp_path / "c", blocks=2)
    campaign.take_in(slots)
    found = [str(finding) for finding in attempt_findings(campaign, slots) if "ran while" in str(finding)]
    assert is_found == bool(found)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param({"device": A}, {"device": A}, None, id="one-card"),
        pytest.param({"device": A}, {"device": B}, "block 1 on GPU-a; block 2 on GPU-b", id="two-cards"),
        pytest.param({"gpu": worked_on("GPU-a")}, {"gpu": worked_on("GPU-b")}, "block 1 on GPU-a", id="as-seen"),
        pytest.param({"gpu": worked_on("GPU-a", "GPU-b")}, {"gpu": worked_on("GPU-a")}, None, id="unclear"),
        pytest.param({}, {}, None, id="no-gpu"),
    ],
)
def test_blocks_on_different_cards_are_said(
    tmp_path: Path, first: dict[str, object], second: dict[str, object], expected: str | None
) -> None:
    campaign = create(tmp_path / "c", blocks=2)
    slots = [*block(1, 0, **first), *block(2, 9, **second)]  # type: ignore[arg-type]
    warnings = card_warnings(read_cell(campaign, campaign.plan.cell("cell"), slots))
    assert (expected is None) == (not warnings)
    for warning in warnings:
        assert "DIFFERENT_CARDS" == warning.code
        assert f"the blocks ran on 2 cards ({expected}" in warning.detail
