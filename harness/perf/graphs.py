"""Did a run that asked for CUDA graphs get them? If not, what it measured is invalid, not slow (design contract 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FLAG = "enable_breakable_cuda_graph"
NEXT_STEP = "Ask for graphs only where they can be captured, and warm up what is timed."


def graph_shortfall(
    config: Mapping[str, Any], graphs: Mapping[str, Any], requests: Sequence[Mapping[str, Any]]
) -> str | None:
    """What is missing from the graphs that a dump's ``config`` asks for, with the reason recorded in its ``graphs``.

    None where none were asked for, or every transformer call that the ``work`` of its ``requests`` counts was a replay.
    """
    if not config.get(FLAG):
        return None
    why = f" ({graphs.get('reason') or 'no reason recorded'})"
    captured, replayed = _count(graphs, "captured"), _count(graphs, "replayed")
    if not captured or not replayed:
        return f"{'captured' if not captured else 'replayed'} none{why}"
    told = [f"{count} call(s) {status}" for status in ("missed", "unsupported") if (count := _count(graphs, status))]
    if told:
        return f"{' and '.join(told)} beside {replayed} replayed{why}"
    calls = sum(
        _count(work, "transformer_calls") for request in requests if isinstance(work := request.get("work"), dict)
    )
    if replayed < calls:
        return f"replayed only {replayed} of {calls} transformer calls{why}"
    return None


def _count(counters: Mapping[str, Any], name: str) -> int:
    """A counter; 0 where it is absent, or no number."""
    value = counters.get(name)
    return value if isinstance(value, int) else 0
