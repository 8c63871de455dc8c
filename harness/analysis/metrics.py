"""The timers of a cell and a verdict for each: the primary one decides the cell, the others describe."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuseproof.harness.analysis.added_blocks import added_block_warnings, alpha_for, look_ends, unpaired_caps
from fuseproof.harness.analysis.editions import EDITION, WARM_UP_AND_FIGURES
from fuseproof.harness.analysis.runs import ARM_WORDS, CellRuns, Run
from fuseproof.harness.campaign.records import arms_of
from fuseproof.harness.campaign.sglang_log import CLIENT_TICK_S
from fuseproof.harness.statistics.comparison import Block, Thresholds
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.harness.statistics.verdict import Verdict, decide, post_worker_tails
from fuseproof.schedules.plan import Plan

TITLES = {
    "worker": "Worker E2E",
    "denoise": "Denoise",
    "client": "Client E2E incl. save",
    "save": "Save",
    "load": "Load",
    "warmup": "Warm-up",
}
NOT_JUDGED = frozenset({"save", "load", "warmup"})
"""Timers around the work: numbers for a reader, without a word."""


def timers_of(edition: int) -> tuple[str, ...]:
    """The timers that an edition of the report knows, in the order of its columns."""
    return tuple(name for name in TITLES if name != "warmup" or edition >= WARM_UP_AND_FIGURES)


@dataclass(frozen=True)
class MetricResult:
    """One timer. ``verdict`` is None when it cannot be judged, and ``note`` says why."""

    name: str
    verdict: Verdict | None
    note: str | None
    is_primary: bool

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def is_judged(self) -> bool:
        """Whether the timer has a word at all."""
        return self.name not in NOT_JUDGED

    @property
    def word(self) -> str:
        """The verdict's word, or that there is none to give."""
        return self.verdict.word.value if self.is_judged and self.verdict is not None else "not judged"

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values; a timer that is not judged keeps its numbers and has null for a word."""
        verdict = None if self.verdict is None else self.verdict.to_json()
        if verdict is not None and not self.is_judged:
            verdict |= {"word": None, "reasons": []}
        return {
            "name": self.name,
            "is_primary": self.is_primary,
            "is_judged": self.is_judged,
            "note": self.note,
            "verdict": verdict,
        }


def seconds_of(run: Run, metric: str) -> float | None:
    """A run's time on one timer, in seconds."""
    value: float | None = getattr(run.record.times, f"{metric}_s")
    return value


CapsOf = Callable[[CellRuns], Sequence[Reason]]
"""What forbids a directional word for runs: asked of all of them, and of those that an earlier look had."""


def no_caps(runs: CellRuns) -> Sequence[Reason]:
    """Of runs about which only their times are known."""
    return ()


def judge_metrics(
    runs: CellRuns, plan: Plan, caps_of: CapsOf = no_caps, timers: Sequence[str] | None = None
) -> tuple[MetricResult, ...]:
    """Judge every timer that the arms gave, the primary one first; ``caps_of`` says what forbids a directional word.

    ``timers`` are those of the report's edition, today's unless others are given.
    """
    order = [plan.primary, *(name for name in timers or timers_of(EDITION) if name != plan.primary)]
    blocks = {name: _blocks(runs, name) for name in order}
    numbers, planned = [block.number for block in runs.blocks], plan.blocks_of(runs.cell.name)
    added, pair = runs.everything.added_blocks, _blocks_in_a_set(runs)
    ends = look_ends(numbers, planned, added, pair)
    caps_by_end = {end: _caps(_up_to(runs, end), planned, pair, caps_of) for end in ends[:-1]}
    caps = _caps(runs, planned, pair, caps_of)
    results = []
    for name in order:
        found = blocks[name]
        if isinstance(found, str):
            results.append(MetricResult(name, None, found, name == plan.primary))
            continue
        worker = blocks["worker"]
        has_gaps = name == "client" and not isinstance(worker, str)
        tick_s = _tick_s(runs, name)
        thresholds = Thresholds(plan.min_effect, alpha_for(numbers, planned, added, pair), tick_s)
        tails = post_worker_tails(worker, found, tick_s) if has_gaps and not isinstance(worker, str) else ()
        looks = added_block_warnings(numbers, planned, found, thresholds, added, pair, caps_by_end)
        verdict = decide(found, thresholds, caps=caps, warnings=(*tails, *looks))
        results.append(MetricResult(name, verdict, None, name == plan.primary))
    return tuple(result for result in results if result.is_primary or result.note != NOT_RECORDED)


NOT_RECORDED = "neither arm recorded it"


def _blocks_in_a_set(runs: CellRuns) -> int:
    """How many blocks have every order of the arms once: as many as the campaign has arms, compared here or not.

    The plan that a comparison is judged by has two arms only, so it cannot say.
    """
    return len(arms_of(run.record for run in runs.everything.runs))


def _up_to(runs: CellRuns, end: int) -> CellRuns:
    """What a look at the blocks up to number ``end`` saw."""
    whole = None if runs.whole is None else _up_to(runs.whole, end)
    return replace(runs, blocks=tuple(block for block in runs.blocks if block.number <= end), whole=whole)


def _caps(runs: CellRuns, planned: int, pair: int, caps_of: CapsOf) -> tuple[Reason, ...]:
    if not runs.blocks:
        return ()
    numbers = [block.number for block in runs.blocks]
    return (*caps_of(runs), *(() if runs.everything.omitted else unpaired_caps(numbers, planned, pair)))


def _tick_s(runs: CellRuns, metric: str) -> float:
    """The timer's step in seconds: client seconds that no dump states come from a log, which rounds them."""
    is_from_log = any(run.dump is not None and run.dump.client_ms is None for run in runs.runs)
    return CLIENT_TICK_S if metric == "client" and is_from_log else 0.0


def _blocks(runs: CellRuns, metric: str) -> list[Block] | str:
    """The timer's blocks in slot order, or why there are none.

    Of several arms the scatter is that of all runs, so every arm must have recorded the timer.
    """
    everything = runs.everything
    arms = arms_of(run.record for run in everything.runs)
    missing = [arm for arm in arms if any(seconds_of(run, metric) is None for run in everything.of_arm(arm))]
    if len(missing) == len(arms):
        return NOT_RECORDED
    if missing:
        return f"unequal timers: the {ARM_WORDS[missing[0]]} did not record it in every run"
    unusable = [run for run in everything.runs if not _is_usable(seconds_of(run, metric))]
    if unusable:
        return f"{unusable[0].record.id} recorded {seconds_of(unusable[0], metric)!r} s, which is no duration"
    return [
        Block(
            block.orientation,
            tuple(seconds_of(run, metric) or math.nan for run in block.runs),
            f"r{block.number}",
            runs.candidate,
        )
        for block in everything.blocks
    ]


def _is_usable(seconds: float | None) -> bool:
    return seconds is not None and math.isfinite(seconds) and seconds > 0
