"""Whether a dump records that others used the machine: all that two single runs can say of contention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fuseproof.harness.perf.dump import PerfDump

SHARE_OF_CORES = 0.1
FEWEST_CORES = 0.5
"""As of a campaign's slots: a tenth of the cores, or half a core where that is more."""
NEXT_STEP = "Measure again on a quiet machine."


def busy_text(dump: PerfDump) -> str | None:
    """``load average 5.93 on 2 cores``; None where the run's own threads explain it, or nothing is recorded."""
    processor, averages = dump.environment.get("processor"), dump.environment.get("load_average")
    cores = _number(processor.get("usable_cores")) if isinstance(processor, Mapping) else None
    load = _number(averages[0]) if isinstance(averages, list) and averages else None
    if cores is None or load is None:
        return None
    others = load - (_number(dump.environment.get("torch_threads")) or 1.0)
    if others <= max(FEWEST_CORES, SHARE_OF_CORES * cores):
        return None
    return f"load average {load:.2f} on {cores:g} cores"


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and value >= 0 else None
