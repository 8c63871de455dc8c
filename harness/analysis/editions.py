"""Which edition of the report a folder holds, so that one rendered earlier can still be rendered word for word.

An edition only adds lines, or takes back a sentence that its runs do not carry: what decides a word or an exit code is
the same in all of them.
``fuseproof report`` renders the newest one, ``fuseproof verify`` the one that ``report.json`` names by its ``schema``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from fuseproof.harness.statistics.reasons import Reason

UNCOUNTED_LEAD = 0
"""That the lead of many cells shows only some of them stood in a line of its own, behind those."""
COUNTED_LEAD = 1
WARM_UP_AND_FIGURES = 2
"""A contract that is not met leads; the warm-up is a timer; what lies outside the timers is told; figures are named."""
TIME_SAVED = 3
"""An ablation tells effects as time saved, with the interval that the verdict rests on; other reports are as before."""
CURVED_DRIFT_TOLD = 4
"""An ablation says what curved drift may do to its effects, and calls no sum another than the whole where it may be."""
WEIGHTS_RECORDED = 5
"""What an embedded model's weights are is told from the dumps, and not from a plan's flags where there are no dumps."""
EDITION = WEIGHTS_RECORDED

_EARLIER_CODES = {"MEANS_DISAGREE": "MEAN_MEDIAN_DISAGREE"}
_SCHEMA = "fuseproof.report/"
_SCHEMAS = {
    UNCOUNTED_LEAD: f"{_SCHEMA}1",
    COUNTED_LEAD: f"{_SCHEMA}1",
    WARM_UP_AND_FIGURES: f"{_SCHEMA}2",
    TIME_SAVED: f"{_SCHEMA}2",
    CURVED_DRIFT_TOLD: f"{_SCHEMA}2",
    WEIGHTS_RECORDED: f"{_SCHEMA}2",
}


def schema_of(edition: int) -> str:
    """The ``schema`` of a ``report.json``: editions that differ in words alone share one."""
    return _SCHEMAS[edition]


def with_earlier_code(reason: Reason) -> Reason:
    """The reason under the code that it had before :data:`WARM_UP_AND_FIGURES`."""
    return replace(reason, code=_EARLIER_CODES.get(reason.code, reason.code))


def stored_editions(report_json: Path) -> tuple[int, ...]:
    """The editions that the folder's report may be of, newest first; today's where it cannot be read."""
    try:
        stored = json.loads(report_json.read_bytes().decode("utf-8", "surrogateescape"))
    except (OSError, ValueError, RecursionError):
        return (EDITION,)
    schema = stored.get("schema") if isinstance(stored, dict) else None
    return tuple(edition for edition in reversed(_SCHEMAS) if _SCHEMAS[edition] == schema) or (EDITION,)
