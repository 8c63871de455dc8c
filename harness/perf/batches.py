"""Batches and warm-ups that a run states: a warm-up smaller than the batch leaves the first measured batch cold.

``fuseproof generate`` runs its requests one at a time, so only dumps and commands of other programs state a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BATCH_KEYS = ("batch_size", "batching_max_size", "max_batch_size", "max_concurrency", "concurrency")
WARMUP_REQUEST_KEYS = ("warmup_requests", "num_warmup_requests", "num_warmups", "warmup")
"""How many requests a warm-up sent. ``warmup: true`` is one a size, as sglang and we warm up."""
NEXT_STEP = "Warm up with at least as many requests as run at once, or leave the first batch out of the numbers."


def cold_first_batch(stated: Mapping[str, Any]) -> str | None:
    """Why the first measured batch is cold, as a sentence; None where it is warm, or too little is stated.

    ``stated`` are flags by name, as numbers or as the text of a command: ``{"batch_size": 4, "warmup_requests": 2}``.
    """
    sizes = {key: size for key in BATCH_KEYS if (size := _count(stated.get(key))) is not None}
    requests = _warmup_requests(stated)
    if not sizes or requests is None:
        return None
    key, size = max(sizes.items(), key=lambda item: item[1])
    if size <= max(1, requests):
        return None
    return f"{key} is {size} and the warm-up is {requests} request(s), so the first measured batch is cold"


def _warmup_requests(stated: Mapping[str, Any]) -> int | None:
    """How many requests the warm-up sent; without a number, one a size where its mode says that it ran."""
    for key in WARMUP_REQUEST_KEYS:
        requests = _count(stated.get(key))
        if requests is not None:
            return requests
    mode = stated.get("warmup_mode", stated.get("warmup"))
    if mode is None:
        return None
    if str(mode).lower() in ("off", "false"):
        return 0
    sizes = stated.get("warmup_resolutions") or ()
    return max(1, len(sizes.split() if isinstance(sizes, str) else sizes))


def _count(value: Any) -> int | None:
    """A whole number, also one written as text; None for anything else."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
