"""Where the blocks of a campaign ran, when they ran side by side: how many at once, on which cards, on which nodes.

A block never leaves its card, so an effect is always one card's. What blocks did to each other through the host's
processors, memory and PCIe is nobody else's doing and is not told apart: it is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from fuseproof.harness.analysis.runs import CellRuns, CountedBlock
from fuseproof.harness.campaign.gpu_telemetry import has_worked
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.number_format import count
from fuseproof.harness.statistics.reasons import Reason

MOST_NAMED = 4
SHARED = "they shared the host's processors, memory and PCIe, and what they did to each other is not told apart"


def side_by_side_text(slots: Sequence[SlotRecord]) -> str | None:
    """How many blocks ran at once, and on what; None for a campaign whose slots were given no place of their own."""
    devices = [slot.device for slot in slots if slot.device is not None]
    if not devices:
        return None
    cards = {device.card for device in devices if device.card is not None}
    nodes = {device.node for device in devices if device.node is not None}
    on_nodes = count(len(nodes), "Ray node") if nodes else ""
    where = count(len(cards), "GPU") + (f" of {on_nodes}" if nodes else "") if cards else f"{on_nodes}, one CPU each"
    most = most_at_once(slots)
    if most <= 1:
        return f"one block at a time ran, on {where}"
    return f"up to {most} blocks ran side by side on {where}; {SHARED}"


def most_at_once(slots: Iterable[SlotRecord]) -> int:
    """The largest number of attempts at blocks that were under way at the same moment, by their slots' UTC times."""
    spans: dict[tuple[str, int, int], list[datetime]] = {}
    for slot in slots:
        moments = [datetime.fromisoformat(text) for text in (slot.started, slot.ended) if text is not None]
        spans.setdefault((slot.cell, slot.block, slot.attempt), []).extend(moments)
    edges = [edge for span in spans.values() if span for edge in ((min(span), 1), (max(span), -1))]
    most = running = 0
    for _, step in sorted(edges):
        running += step
        most = max(most, running)
    return most


def card_warnings(runs: CellRuns) -> tuple[Reason, ...]:
    """DIFFERENT_CARDS where the counting blocks of a cell ran on several cards."""
    by_card: dict[str, list[int]] = {}
    for block in runs.blocks:
        for card in _cards_of(block):
            by_card.setdefault(card, []).append(block.number)
    if len(by_card) < 2:
        return ()
    named = [f"{_blocks(numbers)} on {card}" for card, numbers in list(by_card.items())[:MOST_NAMED]]
    more = f" and {len(by_card) - MOST_NAMED} more" if len(by_card) > MOST_NAMED else ""
    return (
        Reason(
            "DIFFERENT_CARDS",
            f"the blocks ran on {len(by_card)} cards ({'; '.join(named)}{more}): each block's effect is one card's, "
            "their scatter holds what the cards differ in, and the arms' means are over different cards",
            "Measure the cell on one card where its own figure matters: --gpus with one GPU.",
        ),
    )


def _cards_of(block: CountedBlock) -> tuple[str, ...]:
    """The card that the block was given; of a block that was given none, the one that worked, where it is one."""
    given = {run.record.device.card for run in block.runs if run.record.device is not None}
    cards = [card for run in block.runs for card in (run.record.gpu.cards if run.record.gpu is not None else ())]
    worked = {card.uuid for card in cards if has_worked(card)}
    known = sorted(card for card in given if card is not None)
    return tuple(known or (worked if len(worked) == 1 else ()))


def _blocks(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:MOST_NAMED])) + (", …" if len(numbers) > MOST_NAMED else "")
    return f"block{'s' if len(numbers) > 1 else ''} {shown}"
