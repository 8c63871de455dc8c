"""Advice for whoever did not start the runs with ``fuseproof abba``: the same step, without flags that are not there.

Reasons are written for a campaign that can be run again. Imported files and dumps side by side were measured by another
command, so what names a flag of ``abba`` or a key of its plan says the thing itself instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from fuseproof.harness.statistics.reasons import Reason
from fuseproof.harness.statistics.verdict import Verdict

_PLAIN_WORDS = (
    (re.compile(r"run more blocks: --blocks (\d+)"), r"measure \1 blocks in all"),
    (re.compile(r"\brun --blocks (\d+)"), r"measure \1 blocks in all"),
    (re.compile(r"\bRun --blocks (\d+)"), r"Measure \1 blocks in all"),
    (re.compile(r": --order mirrored, --blocks (\d+)"), r": in mirrored order, \1 blocks"),
    (re.compile(r"\bRun (two|as many) blocks"), r"Measure \1 blocks"),
    (re.compile(r"Mirror every second block: --order mirrored"), "Measure every second block in mirrored order"),
    (re.compile(r" with --aa\b"), ", with one program as both arms,"),
)
_CAMPAIGN_FLAG = re.compile(
    r":? (?:fuseproof abba )?--(?:blocks \d+|order mirrored|resume(?: DIR)?|aa|plan-for|warmup --warmup-steps \d+)"
    r"|: warmup_slots = \d+ in the plan|: --gpus with one GPU"
)


def without_campaign_flags(text: str) -> str:
    """``Run two blocks, the second mirrored: --blocks 2.`` → ``Measure two blocks, the second mirrored.``"""
    for pattern, words in _PLAIN_WORDS:
        text = pattern.sub(words, text)
    return _CAMPAIGN_FLAG.sub("", text)


def measured_elsewhere(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The same reasons, with next steps that hold where there is no campaign to go on with."""
    return tuple(replace(reason, next_step=without_campaign_flags(reason.next_step)) for reason in reasons)


def verdict_measured_elsewhere(verdict: Verdict) -> Verdict:
    """A verdict whose reasons and warnings went through :func:`measured_elsewhere`."""
    return replace(verdict, reasons=measured_elsewhere(verdict.reasons), warnings=measured_elsewhere(verdict.warnings))
