"""Cache folders of each arm's own: compiled kernels of one arm must neither warm nor spoil the other's.

They live below the user's cache, one space a campaign, so that both arms begin equally cold, and are removed when
the campaign is complete. How many files each held before and after a slot is recorded with the slot.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fuseproof.harness.campaign.arm_places import CACHE_FOLDERS, CACHE_VARIABLE
from fuseproof.harness.campaign.plausibility import CampaignWarning
from fuseproof.harness.campaign.records import SlotRecord, arms_of
from fuseproof.harness.machine.redaction import redact
from fuseproof.schedules.order import ArmLetter, arm_word

SHARED = {"HF_HOME": "huggingface", "TORCH_HOME": "torch"}
"""What would move with ``XDG_CACHE_HOME`` and must not: downloaded weights stay where they are."""
CACHE_VARIABLES = frozenset({*CACHE_FOLDERS, *SHARED})


def cache_root(variables: Mapping[str, str] | None = None) -> Path:
    """The user's cache folder of fuseproof: ``FUSEPROOF_CACHE_DIR`` if set."""
    from platformdirs import user_cache_dir

    chosen = (os.environ if variables is None else variables).get(CACHE_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else Path(user_cache_dir("fuseproof"))


def cache_space(directory: Path, created: str) -> Path:
    """Where the arms of the campaign in ``directory`` keep their caches."""
    key = hashlib.sha256(os.fsencode(directory.absolute()) + created.encode()).hexdigest()[:16]
    return cache_root() / "arm-caches" / key


def cache_variables(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that keep an arm's caches below ``folder``; ``variables`` is the environment it inherits."""
    own = {name: str(folder / part) for name, part in CACHE_FOLDERS.items()}
    shared_root = Path(variables.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return own | {name: variables.get(name) or str(shared_root / part) for name, part in SHARED.items()}


def warmth(caches: Mapping[str, str]) -> dict[str, int]:
    """How many files each cache folder holds; a folder that is not there holds none."""
    return {name: sum(len(files) for _, _, files in os.walk(folder)) for name, folder in caches.items()}


def cache_record(caches: Mapping[str, str], before: Mapping[str, int]) -> dict[str, Any]:
    """What ``result.json`` keeps: each folder with its files before the slot and after it."""
    after = warmth(caches)
    return {
        name: {"folder": redact(folder), "files_before": before[name], "files_after": after[name]}
        for name, folder in caches.items()
    }


def remove_space(space: Path) -> None:
    """Remove a finished campaign's caches; what cannot be removed stays."""
    shutil.rmtree(space, ignore_errors=True)


def cold_caches(cell: str, runs: Sequence[SlotRecord]) -> tuple[CampaignWarning, ...]:
    """One warning a cache that a counting run of one arm filled from empty, and no run of the other."""
    letters = arms_of(runs)
    names = dict.fromkeys(name for run in runs for name in run.caches or {})
    found = []
    for name in names:
        cold = [letter for letter in letters if any(run.arm == letter and _was_filled(run, name) for run in runs)]
        if len(cold) == 1:
            found.append(_cold_warning(cell, cold[0], name))
    return tuple(found)


def _was_filled(run: SlotRecord, name: str) -> bool:
    facts = (run.caches or {}).get(name, {})
    return facts.get("files_before") == 0 and facts.get("files_after", 0) > 0


def _cold_warning(cell: str, letter: ArmLetter, name: str) -> CampaignWarning:
    arm = arm_word(letter)
    return CampaignWarning(
        code="COLD_CACHE",
        cell=cell,
        arm=letter,
        detail=f"a timed {arm} run of {cell} began with an empty {name} and filled it; no run of the other arm did",
        next_step="Set warmup_slots = 2, so that a discarded slot of each arm fills its caches.",
    )
