"""Peaks of several ranks: largest and sum."""

from __future__ import annotations

from typing import Any

import pytest

from fuseproof.harness.campaign.foreign import ForeignValueError
from fuseproof.harness.campaign.rank_memory import RankPeaks, rank_peaks


def rank(number: Any, allocated_gib: Any, name: str = "after_forward") -> dict[str, Any]:
    peaks = {"peak_allocated_mb": allocated_gib * 1024, "peak_reserved_mb": (allocated_gib + 2) * 1024}
    return {"rank": number, "memory_checkpoints": {name: peaks}}


def test_two_ranks_give_the_largest_and_the_sum() -> None:
    found = rank_peaks({"memory_by_rank": [rank(0, 40), rank(1, 10, "runtime_peak")]})
    assert RankPeaks(2, 40 * 1024, 50 * 1024, 42 * 1024, 54 * 1024) == found


def test_one_rank_has_no_sum() -> None:
    assert RankPeaks(1, 40 * 1024, None, 42 * 1024, None) == rank_peaks({"memory_by_rank": [rank(0, 40)]})


def test_a_rank_that_does_not_tell_leaves_neither() -> None:
    silent = {"rank": 1, "memory_checkpoints": {}}
    assert RankPeaks(2, None, None, None, None) == rank_peaks({"memory_by_rank": [rank(0, 40), silent]})


def test_a_dump_of_one_process_has_no_ranks() -> None:
    assert None is rank_peaks({})


@pytest.mark.parametrize(
    "entries",
    [[], "x", [rank(0, 1), rank(0, 1)], [rank("0", 1)], [{"rank": 0}], [rank(0, -1)], [rank(0, float("nan"))]],
    ids=["empty", "text", "twice", "text-rank", "no-checkpoints", "negative", "nan"],
)
def test_what_is_no_list_of_ranks_is_refused(entries: Any) -> None:
    with pytest.raises(ForeignValueError, match="memory_by_rank"):
        rank_peaks({"memory_by_rank": entries})
