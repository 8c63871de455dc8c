"""Which cards a cell is judged by: chosen once, from all of its runs, so that no slot picks cards of its own.

A card counts for an arm when it worked in most of the arm's runs that sampled it. An idle card beside it has another
clock and other memory, which mean nothing; one run in which a neighbour's desktop woke such a card up changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fuseproof.harness.analysis.runs import CellRuns, Run
from fuseproof.harness.campaign.gpu_records import CardConditions
from fuseproof.harness.campaign.gpu_telemetry import has_worked
from fuseproof.harness.campaign.records import SlotRecord

MOST_NAMED = 3


@dataclass(frozen=True)
class JudgedCards:
    """UUIDs by arm letter. ``unlike`` says in which block the arms worked on different cards; None where in none."""

    by_arm: Mapping[str, tuple[str, ...]]
    unlike: str | None

    @property
    def uuids(self) -> tuple[str, ...]:
        """Every judged card once."""
        return tuple(dict.fromkeys(uuid for cards in self.by_arm.values() for uuid in cards))

    def of(self, record: SlotRecord) -> list[CardConditions]:
        """The judged cards of one slot, in the order it sampled them; empty where it sampled none."""
        cards = record.gpu.cards if record.gpu is not None else ()
        return [card for card in cards if card.uuid in self.by_arm.get(record.arm, ())]


def judged_cards(runs: CellRuns) -> JudgedCards:
    """The cards of every arm, from the runs that count.

    An arm none of whose cards worked (its telemetry tells no utilisation, or its work was too short to be seen) is
    judged by the other arms' cards, and by all that it sampled where nobody's cards worked.
    """
    by_letter: dict[str, list[Run]] = {}
    for run in runs.runs:
        by_letter.setdefault(run.record.arm, []).append(run)
    working = {arm: _mostly_working(own) for arm, own in by_letter.items()}
    known = {uuid for cards in working.values() for uuid in cards}
    by_arm = {arm: working[arm] or _sampled(own, known) for arm, own in by_letter.items()}
    return JudgedCards(by_arm, _unlike(runs, working))


def _mostly_working(runs: Iterable[Run]) -> tuple[str, ...]:
    seen: dict[str, list[bool]] = {}
    for run in runs:
        for card in run.record.gpu.cards if run.record.gpu is not None else ():
            seen.setdefault(card.uuid, []).append(has_worked(card))
    return tuple(uuid for uuid, worked in seen.items() if 2 * sum(worked) > len(worked))


def _sampled(runs: Iterable[Run], known: set[str]) -> tuple[str, ...]:
    found = dict.fromkeys(
        card.uuid for run in runs for card in (run.record.gpu.cards if run.record.gpu is not None else ())
    )
    return tuple(uuid for uuid in found if uuid in known) or tuple(found)


def _unlike(runs: CellRuns, working: Mapping[str, Sequence[str]]) -> str | None:
    """The first block whose arms worked on different cards; one of which an arm's cards are unknown says nothing."""
    for block in runs.blocks:
        found: dict[str, set[str]] = {}
        for run in block.runs:
            cards = run.record.gpu.cards if run.record.gpu is not None else ()
            own = {card.uuid for card in cards if card.uuid in working.get(run.record.arm, ()) and has_worked(card)}
            found.setdefault(run.record.arm, set()).update(own)
        sets = list(found.values())
        if all(sets) and any(cards != sets[0] for cards in sets[1:]):
            told = " against ".join(_names(cards) for _, cards in sorted(found.items()))
            return f"{told} in block {block.number}"
    return None


def _names(uuids: set[str]) -> str:
    shown = sorted(uuids)[:MOST_NAMED]
    return ", ".join(shown) + (f" and {len(uuids) - MOST_NAMED} more" if len(uuids) > MOST_NAMED else "")
