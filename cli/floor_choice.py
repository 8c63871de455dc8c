"""``--floor``: the noise floor of an A/A campaign, read before anything runs and kept in the campaign's folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.harness.campaign.floors import Floor
    from fuseproof.schedules.plan import Plan

HELP = (
    "The noise floor of an `abba --aa` campaign (its folder or aa.json): kept in the campaign's folder and printed "
    "beside the effects; no word changes by it."
)
NONE = "none"
"""Of ``report``: take the floor out of the folder again."""
NEXT_STEP = "Leave --floor out, or measure the floor with --aa by this plan on this card."


def chosen_floor(path: str | None, plan: Plan | None, environment: Mapping[str, Any]) -> Floor | None:
    """The floor at ``path``; UsageError where it is none, or none for any cell of ``plan`` on this machine."""
    if path is None:
        return None
    from fuseproof.harness.analysis.floor import obstacles_of
    from fuseproof.harness.campaign.floors import read_floor

    floor = read_floor(path)
    obstacles = [] if plan is None else obstacles_of(floor, plan, environment)
    if obstacles:
        raise UsageError(f"--floor {path} is no floor for this plan here: {'; '.join(obstacles)}.", next_step=NEXT_STEP)
    return floor


def change_floor(directory: str, path: str) -> str:
    """Put the floor at ``path`` into the folder of a campaign that was measured already, or take it out (``none``).

    Returns a sentence that says what was done to the folder.
    """
    if path == NONE:
        from pathlib import Path

        from fuseproof.harness.campaign.floors import KEPT_FLOOR, remove_floor

        floor = remove_floor(Path(directory))
        what = f"removed {directory}/{KEPT_FLOOR}, the floor of {floor.campaign} of {floor.created}"
    else:
        what = keep_chosen_floor(directory, path)
    return f"{what}; report and SHA256SUMS of {directory} are written again"


def keep_chosen_floor(directory: str, path: str) -> str:
    """Copy the floor at ``path`` into the folder of a campaign that was measured already; says what was written.

    UsageError where it is a floor for none of its cells, or where the folder holds another one.
    """
    from fuseproof.harness.analysis.campaign import analyse
    from fuseproof.harness.analysis.floor import cell_floor
    from fuseproof.harness.analysis.gpu_conditions import gpu_cards
    from fuseproof.harness.campaign.floors import KEPT_FLOOR, keep_floor, read_floor
    from fuseproof.harness.campaign.folder import Campaign

    floor, campaign = read_floor(path), Campaign.open(directory)
    found = [
        cell_floor(floor, campaign.plan, cell.runs.cell.name, campaign.environment, gpu_cards(cell.gpu))
        for cell in analyse(campaign).cells
    ]
    if not any(one.is_comparable for one in found):
        obstacles = dict.fromkeys(text for one in found for text in one.obstacles)
        raise UsageError(
            f"--floor {path} is no floor for any cell of {directory}: {'; '.join(obstacles)}.", next_step=NEXT_STEP
        )
    keep_floor(floor, campaign.directory)
    return f"{directory}/{KEPT_FLOOR} holds the floor of {floor.campaign} of {floor.created}"
