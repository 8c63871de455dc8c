"""What is kept of the GPUs in ``result.json``: how they ran while the slot ran, and how it left them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fuseproof.harness.machine.nvml import EVENT_REASONS, SW_POWER_CAP, SW_THERMAL

POWER_CAPPED = EVENT_REASONS[SW_POWER_CAP]
THERMALLY_SLOWED = EVENT_REASONS[SW_THERMAL]
"""Names in ``event_counts`` whose shares are compared between the arms."""
PHASES = ("load", "warm-up", "request")
UNTAGGED = "untagged"
"""Of samples of which nobody said what the slot was doing; those between and after the phases too."""


@dataclass(frozen=True)
class PhaseConditions:
    """One card in one phase of a slot: means, except for temperatures and memory, which are the highest seen.

    ``event_counts`` says in how many samples each event reason was set; ``event_samples`` counts those that told.
    Of ``busy_*`` only samples with at least half utilisation count.
    """

    samples: int
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    utilization_percent: float | None = None
    memory_used_peak_mib: float | None = None
    event_samples: int = 0
    event_counts: Mapping[str, int] = field(default_factory=dict)
    busy_samples: int = 0
    busy_sm_clock_mhz: float | None = None


@dataclass(frozen=True)
class CardConditions:
    """One card, phase by phase; a phase without a sample is left out."""

    uuid: str
    phases: Mapping[str, PhaseConditions] = field(default_factory=dict)


@dataclass(frozen=True)
class CardsAtRest:
    """The cards after the slot's processes had ended: how long it took until their memory was back.

    ``used_mib`` and ``baseline_mib`` are MiB by UUID, the baseline being what was in use before the campaign's first
    slot. ``foreign`` names compute processes that were there although nothing of the campaign ran.
    """

    waited_s: float
    is_at_rest: bool | None
    used_mib: Mapping[str, float] = field(default_factory=dict)
    baseline_mib: Mapping[str, float] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    reason: str | None = None
    mps: tuple[str, ...] = ()
    """Servers of CUDA's multi-process service: what their clients do cannot be told apart."""


@dataclass(frozen=True)
class SlotDevice:
    """Where a slot ran when blocks run side by side: the one GPU it was given, and the cluster's node it is in.

    ``uuid`` is None where the driver gives none, and all three are None where a block was given no GPU. ``node`` is
    the Ray cluster's own name for the machine; None where the campaign ran on one machine.
    """

    uuid: str | None = None
    index: int | None = None
    name: str | None = None
    node: str | None = None

    @property
    def card(self) -> str | None:
        """The card as it is told apart from others: its UUID, else its index on its node; None without a GPU."""
        if self.uuid is not None or self.index is None:
            return self.uuid
        return f"GPU {self.index}" + (f" of node {self.node}" if self.node else "")


@dataclass(frozen=True)
class SlotGpu:
    """The GPUs of one slot. ``reason`` says what could not be read, ``phase_source`` where the phases come from.

    ``interval_s`` is the median time between two samples of one card, ``longest_gap_s`` the longest, over all cards;
    both are None with fewer than two samples.
    ``cpu_share`` is the sampler's own processor time as a share of all usable cores' while it sampled.
    """

    cards: tuple[CardConditions, ...] = ()
    interval_s: float | None = None
    longest_gap_s: float | None = None
    cpu_share: float | None = None
    phase_source: str | None = None
    reason: str | None = None
    at_rest: CardsAtRest | None = None
