"""How calls to a graphed function were answered, and why not by a replay."""

from __future__ import annotations

from collections import Counter
from typing import Any

STATUSES = ("captured", "replayed", "missed", "rejected", "unsupported")
DECIDED_AT_WARMUP = ("captured", "rejected")
"""These stay; the other counters speak of the calls since :meth:`GraphCounters.restart`."""
REASONS_SHOWN = 8
REASONS_KEPT = 64
OTHER_REASONS = "for other reasons"


class GraphCounters:
    """``captured`` graphs; ``replayed`` calls; ``missed`` calls whose key had no graph; ``rejected`` captures, which
    failed, and graphs, which were dropped; ``unsupported`` calls, which no graph could answer.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._reasons: Counter[tuple[str, str]] = Counter()

    def add(self, status: str, reason: str | None = None) -> None:
        """Count one graph or call."""
        self.counts[status] += 1
        if reason is not None:
            is_kept = len(self._reasons) < REASONS_KEPT or (status, reason) in self._reasons
            self._reasons[status, reason if is_kept else OTHER_REASONS] += 1

    def restart(self) -> None:
        """Count calls from here on."""
        self.counts = Counter({status: self.counts[status] for status in DECIDED_AT_WARMUP})
        self._reasons = Counter({key: calls for key, calls in self._reasons.items() if key[0] in DECIDED_AT_WARMUP})

    def report(self) -> dict[str, Any]:
        """The five counters; ``reason``, one text or None; ``reasons``, each with its status and number."""
        shown = self._reasons.most_common(REASONS_SHOWN)
        return {
            **{status: self.counts[status] for status in STATUSES},
            "reason": "; ".join(f"{status}: {reason}" for (status, reason), _ in shown) or None,
            "reasons": [{"status": status, "reason": reason, "count": count} for (status, reason), count in shown],
        }
