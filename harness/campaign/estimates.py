"""What a campaign will do, before it does it: slots in order, full commands, time and space."""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseproof.harness.campaign.arm_places import ArmPlace
from fuseproof.harness.campaign.arms import SlotCommand, recorded_argv, slot_command
from fuseproof.harness.campaign.folder import OUTPUTS_FOLDER, PERF_FILE
from fuseproof.schedules.order import PlannedSlot, first_pass
from fuseproof.schedules.plan import Cell, Plan

BYTES_PER_MIB = 2**20
LOGS_MIB = 0.1
BYTES_PER_PIXEL = 3


@dataclass(frozen=True)
class DryRun:
    """The slots of an undisturbed campaign with their commands. ``total_s`` and ``total_mib`` are None if unknown."""

    slots: tuple[tuple[PlannedSlot, SlotCommand], ...]
    total_s: float | None
    total_mib: float | None
    limit_s: float
    free_mib: float | None
    directory: Path
    places: Mapping[str, ArmPlace]
    """By arm letter, where arms with refs or a Python of their own will run; nothing of it was made."""

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "fuseproof.dry-run/1",
            "directory": str(self.directory),
            "arms": {
                letter: {"commit": place.commit, "tree": place.tree and str(place.tree), "python": place.python}
                for letter, place in self.places.items()
            },
            "slots": [
                {
                    "id": slot.id,
                    "label": slot.label,
                    "arm": slot.arm,
                    "orientation": slot.orientation,
                    "kind": slot.kind,
                    "command": list(recorded_argv(command.argv, self.directory)),
                    "environment_overrides": dict(command.overrides),
                }
                for slot, command in self.slots
            ],
            "estimated_s": self.total_s,
            "estimated_mib": self.total_mib,
            "limit_s": self.limit_s,
            "free_mib": self.free_mib,
        }


def dry_run(plan: Plan, directory: Path, places: Mapping[str, ArmPlace] | None = None) -> DryRun:
    """Plan every slot of ``plan`` in ``directory`` without touching it; ``places`` are its arms' by letter."""
    known = places or {}
    cells = {cell.name: cell for cell in plan.cells}
    slots = []
    blocks = {name: plan.blocks_of(name) for name in cells}
    for slot in first_pass(blocks, plan.order, plan.warmup_slots, len(plan.letters)):
        folder = directory / "slots" / slot.id
        files = (folder / PERF_FILE, folder / OUTPUTS_FOLDER)
        command = slot_command(plan.arm(slot.arm), cells[slot.cell], *files, known.get(slot.arm))
        slots.append((slot, command))
    return DryRun(
        slots=tuple(slots),
        total_s=_total([cells[slot.cell].slot_s for slot, _ in slots]),
        total_mib=_total([slot_mib(cells[slot.cell]) for slot, _ in slots]),
        limit_s=plan.timeout_s * len(slots),
        free_mib=_free_mib(directory),
        directory=directory,
        places=known,
    )


def slot_mib(cell: Cell) -> float | None:
    """About what one slot writes: the cell's own hint, else its uncompressed images; None when neither is known."""
    if cell.slot_mib is not None:
        return cell.slot_mib
    words = [part for word in shlex.split(cell.flags) for part in word.split("=", 1)]
    width, height = _number_after("--width", words), _number_after("--height", words)
    if width is None or height is None or "--prompt-path" in words:
        return None
    prompts = max(1, words.count("--prompt"))
    return prompts * width * height * BYTES_PER_PIXEL / BYTES_PER_MIB + LOGS_MIB


def _number_after(flag: str, words: Sequence[str]) -> int | None:
    positions = [index for index, word in enumerate(words[:-1]) if word == flag]
    value = words[positions[-1] + 1] if positions else ""
    return int(value) if value.isdecimal() else None


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(math.fsum(known), 3) if len(known) == len(values) else None


def _free_mib(directory: Path) -> float | None:
    """Free space where the folder will be; looks at the nearest parent that exists."""
    for folder in (directory, *directory.parents):
        try:
            return round(shutil.disk_usage(folder).free / BYTES_PER_MIB, 1)
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
