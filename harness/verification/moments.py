"""Moments as ``result.json`` and dumps write them."""

from __future__ import annotations

from datetime import datetime


def moment_s(value: object) -> float | None:
    """Seconds since 1970 of an ISO-8601 text with a time zone, or a number as it is; None for everything else."""
    if isinstance(value, float | int):
        return float(value)
    try:
        moment = datetime.fromisoformat(str(value))
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError, OSError):
        return None
