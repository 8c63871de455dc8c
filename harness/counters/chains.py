"""What the counters of a chain of kernels add up to, and the table that sets two chains side by side.

Times, bytes and sectors are sums over the chain; percentages, warps and stalls are means weighted by each kernel's
duration; registers are those of the hungriest kernel. Bandwidth is all bytes over the summed duration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuseproof.harness.counters.launches import Launch

STALLS_SHOWN = 3
NO_WAIT = "selected"


@dataclass(frozen=True)
class Chain:
    """The counters of one form of a call: microseconds, bytes, GB/s (10^9 bytes), percent; None where not read.

    ``stalls`` are shares of all warps that could have issued and waited or did, largest first.
    """

    kernels: int
    duration_us: float
    dram_read_bytes: float | None
    dram_written_bytes: float | None
    bandwidth_gb_s: float | None
    dram_percent_of_peak: float | None
    registers_per_thread: float | None
    local_load_sectors: float | None
    local_store_sectors: float | None
    active_warps_per_sm: float | None
    achieved_occupancy_percent: float | None
    theoretical_occupancy_percent: float | None
    stalls: tuple[tuple[str, float], ...]
    launches: tuple[Launch, ...]

    @property
    def launch_text(self) -> str:
        """Grid and block of one kernel, nothing for several."""
        return f"{self.launches[0].grid} x {self.launches[0].block}" if self.kernels == 1 else "-"


def summed(launches: Sequence[Launch]) -> Chain:
    """One chain; a ValueError where it has no kernel."""
    if not launches:
        raise ValueError("a chain without a kernel has no counters")
    nanoseconds = sum(one.duration_ns for one in launches)
    read, written = _sum(launches, "read_bytes"), _sum(launches, "written_bytes")
    known = read is not None and written is not None
    registers = [one.registers for one in launches if one.registers is not None]
    return Chain(
        kernels=len(launches),
        duration_us=nanoseconds / 1e3,
        dram_read_bytes=read,
        dram_written_bytes=written,
        bandwidth_gb_s=((read or 0) + (written or 0)) / nanoseconds if known else None,
        dram_percent_of_peak=_mean(launches, "dram_percent"),
        registers_per_thread=max(registers) if registers else None,
        local_load_sectors=_sum(launches, "local_load_sectors"),
        local_store_sectors=_sum(launches, "local_store_sectors"),
        active_warps_per_sm=_mean(launches, "warps_per_sm"),
        achieved_occupancy_percent=_mean(launches, "occupancy_percent"),
        theoretical_occupancy_percent=_mean(launches, "theoretical_percent"),
        stalls=_stalls(launches),
        launches=tuple(launches),
    )


def to_document(chain: Chain) -> dict[str, Any]:
    """The chain as JSON, its launches included."""
    return asdict(chain) | {
        "stalls": [{"reason": reason, "share": share} for reason, share in chain.stalls],
        "launches": [asdict(one) for one in chain.launches],
    }


def markdown_table(eager: Chain, fused: Chain) -> Iterator[str]:
    """The counters of the eager chain against those of the fused form, one a row."""
    kernels = f"{eager.kernels} kernel{'s' * (eager.kernels != 1)}"
    yield f"| counter | eager, {kernels} | fused, {fused.kernels} kernel{'s' * (fused.kernels != 1)} | eager / fused |"
    yield "|---|--:|--:|--:|"
    for name, attribute, form in _ROWS:
        one, other = getattr(eager, attribute), getattr(fused, attribute)
        ratio = f"{one / other:.2f}" if attribute in _WITH_RATIO and one is not None and other else ""
        yield f"| {name} | {_shown(one, form)} | {_shown(other, form)} | {ratio} |"
    yield f"| grid x block | {eager.launch_text} | {fused.launch_text} |  |"
    yield f"| main stalls | {_stall_text(eager)} | {_stall_text(fused)} |  |"


_ROWS = (
    ("kernel time, summed (us)", "duration_us", ",.3f"),
    ("DRAM reads (bytes)", "dram_read_bytes", ",.0f"),
    ("DRAM writes (bytes)", "dram_written_bytes", ",.0f"),
    ("achieved bandwidth (GB/s)", "bandwidth_gb_s", ",.0f"),
    ("DRAM throughput (% of peak)", "dram_percent_of_peak", ".2f"),
    ("registers a thread (most)", "registers_per_thread", ".0f"),
    ("local load sectors (spills)", "local_load_sectors", ",.0f"),
    ("local store sectors (spills)", "local_store_sectors", ",.0f"),
    ("active warps an SM", "active_warps_per_sm", ".2f"),
    ("achieved occupancy (%)", "achieved_occupancy_percent", ".2f"),
    ("theoretical occupancy (%)", "theoretical_occupancy_percent", ".2f"),
)
_WITH_RATIO = ("duration_us", "dram_read_bytes", "dram_written_bytes")


def _shown(value: float | None, form: str) -> str:
    return "not read" if value is None else format(value, form)


def _stall_text(chain: Chain) -> str:
    return (
        ", ".join(f"{reason.replace('_', ' ')} {share:.0%}" for reason, share in chain.stalls[:STALLS_SHOWN])
        or "not read"
    )


def _sum(launches: Sequence[Launch], attribute: str) -> float | None:
    """None where any kernel lacks it: a sum of some would be too small."""
    values = [getattr(one, attribute) for one in launches]
    return None if None in values else float(sum(values))


def _mean(launches: Sequence[Launch], attribute: str) -> float | None:
    values = [(getattr(one, attribute), one.duration_ns) for one in launches]
    if any(value is None for value, _ in values):
        return None
    return float(sum(value * weight for value, weight in values) / sum(weight for _, weight in values))


def _stalls(launches: Sequence[Launch]) -> tuple[tuple[str, float], ...]:
    """Shares of each reason in a kernel's warps, weighted by its duration."""
    total = sum(one.duration_ns for one in launches)
    shares: dict[str, float] = {}
    for one in launches:
        warps = sum(one.stalls.values())
        for reason, value in _waits(one.stalls).items():
            shares[reason] = shares.get(reason, 0.0) + (value / warps * one.duration_ns / total if warps else 0.0)
    return tuple(sorted(((reason, share) for reason, share in shares.items() if share > 0), key=lambda pair: -pair[1]))


def _waits(stalls: Mapping[str, float]) -> dict[str, float]:
    return {reason: value for reason, value in stalls.items() if reason != NO_WAIT}
