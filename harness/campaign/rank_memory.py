"""Memory peaks of a run on several ranks: the largest says whether it fits, the sum what it costs.

A dump may hold ``memory_by_rank``: one entry a rank with ``rank`` and its own ``memory_checkpoints``, whose keys are
those of the dump. The dump's own ``memory_checkpoints`` are then one rank's and are not used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuseproof.harness.campaign.foreign import ForeignValueError

REQUEST_CHECKPOINTS = ("after_forward", "runtime_peak")


@dataclass(frozen=True)
class RankPeaks:
    """The request's peaks in MiB; None where a rank does not state it. ``ranks`` is how many there are."""

    ranks: int
    allocated_mib: float | None
    allocated_sum_mib: float | None
    reserved_mib: float | None
    reserved_sum_mib: float | None


def rank_peaks(dump: Mapping[str, Any]) -> RankPeaks | None:
    """Largest and sum over the ranks of a raw dump; None without ``memory_by_rank``.

    Raises :class:`ForeignValueError` for entries that are no ranks, or ranks that are named twice.
    """
    entries = dump.get("memory_by_rank")
    if entries is None:
        return None
    if not isinstance(entries, list) or not entries:
        raise ForeignValueError("memory_by_rank is no list of ranks")
    ranks = [entry.get("rank") if isinstance(entry, Mapping) else None for entry in entries]
    if not all(isinstance(rank, int) for rank in ranks) or len(set(ranks)) != len(ranks):
        raise ForeignValueError(f"memory_by_rank names the ranks {ranks}, expected a different whole number each")
    allocated = [_peak(entry, "peak_allocated_mb") for entry in entries]
    reserved = [_peak(entry, "peak_reserved_mb") for entry in entries]
    return RankPeaks(len(entries), *_largest_and_sum(allocated), *_largest_and_sum(reserved))


def _largest_and_sum(peaks: list[float | None]) -> tuple[float | None, float | None]:
    known = [peak for peak in peaks if peak is not None]
    if len(known) != len(peaks):
        return None, None
    return max(known), math.fsum(known) if len(known) > 1 else None


def _peak(entry: Mapping[str, Any], key: str) -> float | None:
    checkpoints = entry.get("memory_checkpoints")
    if not isinstance(checkpoints, Mapping):
        raise ForeignValueError(f"memory_by_rank holds no memory_checkpoints of rank {entry.get('rank')}")
    for name in REQUEST_CHECKPOINTS:
        values = checkpoints.get(name)
        value = values.get(key) if isinstance(values, Mapping) else None
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ForeignValueError(f"memory_by_rank of rank {entry.get('rank')}: {key} is {value!r}")
        if value:
            return float(value)
    return None
