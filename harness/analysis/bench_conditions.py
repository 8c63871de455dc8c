"""Whether times of single kernels are of the card and the versions that an ablation ran on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fuseproof.harness.analysis.gpu_conditions import gpu_cards
from fuseproof.harness.analysis.noise_floor import floor_conditions
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.kept_bench import KeptBench
from fuseproof.harness.number_format import shortened

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CellAnalysis

SETTLING = ("torch", "triton", "cuda", "cudnn")
"""Versions that decide how long a kernel takes; what is known on one side alone is no difference."""
LONGEST = 80


def differences_of_bench(
    bench: KeptBench, campaign: Campaign, cells: Iterable[CellAnalysis]
) -> tuple[str | None, list[str]]:
    """The other card in words (None: the same, or unknown), and each version that differs."""
    cards = tuple(dict.fromkeys(card for cell in cells for card in gpu_cards(cell.gpu)))
    here = floor_conditions(campaign.environment, cards)
    record = bench.record
    models = here["card models"]
    other = None
    if models and record.card.name not in models:
        other = (
            f"{shortened(record.card.name, LONGEST)}, and the campaign ran on {shortened(', '.join(models), LONGEST)}"
        )
    versions = [(name, then, here["versions"].get(name)) for name, then in record.versions.items() if name in SETTLING]
    drivers = [str(one) for one in here["driver"]]
    found = [
        f"{name} {shortened(then, LONGEST)} against {now}"
        for name, then, now in versions
        if then and now and _public(then) != _public(str(now))
    ]
    if record.card.driver and drivers and record.card.driver not in drivers:
        found.append(f"driver {shortened(record.card.driver, LONGEST)} against {', '.join(drivers)}")
    return other, found


def _public(version: str) -> str:
    """Without the build's own mark: 2.13.0+cu130 is 2.13.0."""
    return version.partition("+")[0]
