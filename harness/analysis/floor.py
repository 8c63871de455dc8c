"""A campaign beside the noise floor of an A/A campaign: is it a floor for these cells, and does an effect exceed it?

The floor describes. A verdict rests on the scatter of its own runs; the floor is printed beside it, and an effect that
is no larger than what one program differs from itself by gets a warning. The word never changes by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuseproof.harness.analysis.noise_floor import arm_sha256, floor_conditions, text_sha256
from fuseproof.harness.campaign.floors import Floor, TimerFloor
from fuseproof.harness.number_format import count, number, shortened
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.harness.statistics.verdict import Verdict, Word
from fuseproof.schedules.plan import Plan

MOST_VERSIONS = 4
DIRECTIONAL = frozenset({Word.FASTER, Word.SLOWER})
LONGEST_DOUBT = 160
NOISE_CODES = frozenset({"SPREAD_EXCEEDS_EFFECT", "BELOW_MIN_EFFECT"})
"""Reasons of an A/A that its interval tells anyway: it is noisy. Every other one says that something disturbed it."""
DISTURBED_STEP = "Measure the floor anew with --aa, on a machine that is left alone."
NEXT_STEP = "Measure the floor anew with --aa on the same card, with the same software and plan."


@dataclass(frozen=True)
class CellFloor:
    """The floor for one cell's primary timer. ``obstacles`` say why it is none, ``remarks`` what else differs.

    ``doubts`` are what the A/A campaign itself stumbled over: somebody else used the machine, the clock moved.
    """

    cell: str
    timer: str
    campaign: str
    created: str
    card: str
    """``the same card``, ``another card of the same model``, ``the same processor``."""
    found: TimerFloor | None
    obstacles: tuple[str, ...]
    remarks: tuple[str, ...]
    doubts: tuple[str, ...] = ()

    @property
    def is_comparable(self) -> bool:
        return self.found is not None and not self.obstacles

    @property
    def text(self) -> str:
        """``A/A on the same card: ±0.32 % (worker; it measured −0.04 %, 95 % interval [−0.32, 0.24] %, 2 blocks)``."""
        source = f"campaign {self.campaign} of {self.created[:10]}"
        if self.found is None or self.obstacles:
            return f"A/A on file ({source}) is no floor here: {'; '.join(self.obstacles)}"
        found = self.found
        lower, upper = (number(100 * bound, 2) for bound in found.interval)
        differing = f"; differing: {'; '.join(self.remarks)}" if self.remarks else ""
        doubtful = f"; doubtful: {'; '.join(self.doubts)}" if self.doubts else ""
        return (
            f"A/A on {self.card}: ±{number(100 * found.reach, 2)} % ({self.timer}; it measured "
            f"{number(100 * found.apparent_reduction, 2, signed=True)} %, {100 * found.level:g} % interval "
            f"[{lower}, {upper}] %, {count(found.blocks, 'block')}, {source}{differing}{doubtful})"
        )

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        reach = None if self.found is None else self.found.reach
        return asdict(self) | {"is_comparable": self.is_comparable, "reach": reach}


def cell_floor(floor: Floor, plan: Plan, cell: str, environment: Mapping[str, Any], cards: Sequence[str]) -> CellFloor:
    """Hold one cell of a campaign against a floor, key by key; ``cards`` are the UUIDs that it ran on, if known."""
    own = floor_conditions(environment, cards)
    card, obstacles, remarks = _card(floor.conditions, own)
    remarks += _versions(floor.conditions, own)
    if floor.arm != arm_sha256(plan.arm("A")):
        remarks.append("arm (the A/A did not run this campaign's baseline)")
    if cell not in floor.workloads:
        obstacles.append(f"cell: it has no {cell}")
    elif floor.workloads[cell] != text_sha256(plan.cell(cell).flags):
        obstacles.append(f"cell {cell}: its flags are not this plan's")
    found = floor.cells.get(cell, {}).get(plan.primary)
    if found is None and not obstacles:
        obstacles.append(f"timer: it has no {plan.primary} of {cell}")
    return CellFloor(
        cell, plan.primary, floor.campaign, floor.created, card, found, tuple(obstacles), tuple(remarks), _doubts(found)
    )


def _doubts(found: TimerFloor | None) -> tuple[str, ...]:
    """What makes an A/A's interval another one than the machine's own noise, by the A/A's own word and reasons."""
    if found is None or found.word == Word.SAME:
        return ()
    if found.word is None:
        return ("its file does not say how the A/A ended",)
    ended = f"the A/A ended as {shortened(found.word, LONGEST_DOUBT)}"
    if found.word in DIRECTIONAL:
        return (f"{ended}, so two runs of one program differed by more than their scatter",)
    if found.reasons is None:
        return (f"{ended}, and its file does not say why",)
    telling = [(code, detail) for code, detail in found.reasons if code not in NOISE_CODES]
    return tuple(shortened(f"{ended}: {code}: {detail}", LONGEST_DOUBT) for code, detail in telling)


def floor_warnings(floor: CellFloor | None, verdict: Verdict) -> tuple[Reason, ...]:
    """That the floor is none here, is of other software or was disturbed, and that an effect lies inside it."""
    if floor is None:
        return ()
    if not floor.is_comparable:
        return (Reason("FLOOR_MISMATCH", floor.text, NEXT_STEP),)
    found = []
    if floor.remarks:
        told = f"the A/A floor was measured under other conditions: {'; '.join(floor.remarks)}"
        found.append(Reason("FLOOR_DIFFERS", told, NEXT_STEP))
    if floor.doubts:
        found.append(Reason("FLOOR_DISTURBED", f"the A/A floor is doubtful: {'; '.join(floor.doubts)}", DISTURBED_STEP))
    comparison = verdict.comparison
    if (
        floor.found is not None
        and comparison is not None
        and verdict.word in DIRECTIONAL
        and abs(comparison.reduction) <= floor.found.reach
    ):
        found.append(
            Reason(
                "INSIDE_FLOOR",
                f"the effect of {number(100 * abs(comparison.reduction), 2)} % is no larger than ±"
                f"{number(100 * floor.found.reach, 2)} %, within which an A/A on {floor.card} finds one program "
                "beside itself; the word rests on this campaign's own scatter and stands",
                "Run more blocks of the A/A and of this campaign before quoting the effect.",
            )
        )
    return tuple(found)


def obstacles_of(floor: Floor, plan: Plan, environment: Mapping[str, Any]) -> list[str]:
    """Why a floor is none for any cell of a plan on this machine, before anything runs; empty where it is for one."""
    cards = _expected_cards(floor, environment)
    found = [cell_floor(floor, plan, cell.name, environment, cards) for cell in plan.cells]
    if any(not one.obstacles for one in found):
        return []
    return list(dict.fromkeys(text for one in found for text in one.obstacles))


def _card(before: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, list[str], list[str]]:
    """The card in words, what forbids the comparison, and what is worth a remark."""
    models, mine = sorted(set(before.get("card models") or [])), sorted(set(own["card models"]))
    if models != mine:
        return "another card", [f"card ({_list(models)} against {_list(mine)})"], []
    if not mine:
        is_same = before.get("processor") == own["processor"]
        told = f"processor ({before.get('processor')} against {own['processor']})"
        return "the same processor", [] if is_same else [told], []
    if set(own["cards"]) <= set(before.get("cards") or []):
        return "the same card" if len(own["cards"]) == 1 else "the same cards", [], []
    told = f"card (another {_list(mine)}: {_list(before.get('cards') or [])} against {_list(own['cards'])})"
    return "another card of the same model", [], [told]


def _versions(before: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    old, new = dict(before.get("versions") or {}), dict(own["versions"])
    if before.get("driver") != own["driver"]:
        old["driver"], new["driver"] = _list(before.get("driver") or []), _list(own["driver"])
    differing = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    shown = [f"{name} ({old.get(name, 'none')} against {new.get(name, 'none')})" for name in differing[:MOST_VERSIONS]]
    hidden = len(differing) - len(shown)
    return [f"versions: {', '.join(shown)}{f' and {hidden} more' if hidden else ''}"] if shown else []


def _list(values: Any) -> str:
    return ", ".join(map(str, values)) or "none"


def _expected_cards(floor: Floor, environment: Mapping[str, Any]) -> list[str]:
    """The floor's own cards where this session sees them; else as many as the floor had, of those it sees."""
    visible = [str(uuid) for uuid in environment.get("visible_gpu_uuids") or () if uuid]
    cards = [str(uuid) for uuid in floor.conditions.get("cards") or ()]
    return cards if set(cards) <= set(visible) else visible[: max(1, len(cards))]
