"""Microseconds saved a call, times calls of a request: what a unit should save if nothing else stood in the way.

The microseconds are those of ``fastpaths bench``: eager chain minus fused form, medians on the device alone. A site may
call several kernels at several shapes, and nobody counts calls by shape, so the prediction is a range: all calls at the
row that saves least, to all calls at the row that saves most. Rows of the request's own size are taken where the bench
has any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuseproof.harness.analysis.ablation_calls import RanUnits, SiteCalls
from fuseproof.harness.campaign.kept_bench import KeptBench
from fuseproof.harness.kernel_times.record import EQUAL, Row
from fuseproof.schedules.ablation import Ablation

MICROSECOND = 1e-6


@dataclass(frozen=True)
class Prediction:
    """``saved_us`` a call, from the row that saves least to the one that saves most; ``saved_s`` of a whole run.

    ``saved_s`` is summed over the unit's sites, each with its own range; ``calls`` are those that rows were found for.
    """

    calls: float
    saved_us: tuple[float, float]
    saved_s: tuple[float, float]
    rows: int
    without_rows: tuple[str, ...]
    """Sites of the unit that ran fused and that the bench has no times of."""

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return asdict(self)


def predictions_of(
    ablation: Ablation, ran: RanUnits, bench: KeptBench | None, size: str | None = None
) -> dict[str, Prediction]:
    """By unit; a unit without a row of the bench, or without a fused call, has none. ``size`` is ``1024x1024``."""
    if bench is None:
        return {}
    by_site: dict[str, list[Row]] = {}
    for row in bench.record.calls:
        if row.bits == EQUAL and row.eager is not None and row.fused is not None:
            by_site.setdefault(row.site, []).append(row)
    own = {site: _of_size(rows, size) for site, rows in by_site.items()}
    found = {unit: _prediction(ran.of_unit[unit].whole, own) for unit in ablation.units}
    return {unit: one for unit, one in found.items() if one is not None}


def _of_size(rows: Sequence[Row], size: str | None) -> Sequence[Row]:
    matching = [row for row in rows if size is not None and row.workload.split(",")[0].split("#")[0].strip() == size]
    return matching or rows


def _prediction(sites: Mapping[str, SiteCalls] | None, rows: Mapping[str, Sequence[Row]]) -> Prediction | None:
    ran = {site: calls.fused for site, calls in (sites or {}).items() if calls.fused}
    saved = {site: [_saved_us(row) for row in rows[site]] for site in ran if site in rows}
    if not saved:
        return None
    everything = [value for values in saved.values() for value in values]
    return Prediction(
        calls=sum(ran[site] for site in saved),
        saved_us=(min(everything), max(everything)),
        saved_s=(
            MICROSECOND * sum(ran[site] * min(values) for site, values in saved.items()),
            MICROSECOND * sum(ran[site] * max(values) for site, values in saved.items()),
        ),
        rows=len(everything),
        without_rows=tuple(site for site in ran if site not in rows),
    )


def _saved_us(row: Row) -> float:
    if row.eager is None or row.fused is None:
        raise AssertionError("rows without both times were left out")
    return row.eager.median_us - row.fused.median_us
