"""Every slot as one row of comma-separated values (RFC 4180), for spreadsheets and data frames.

A text from outside (a cell's name, a reason, an imported label) must not become a formula of the spreadsheet that opens
the file: one that begins with ``=``, ``+``, ``-`` or ``@`` gets an apostrophe before it.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Sequence

from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.campaign.records import SlotMemory, SlotOutput, SlotRecord, SlotTimes
from fuseproof.harness.escape import visible
from fuseproof.harness.report.privacy import Cleaner

PLACE_COLUMNS = ("cell", "block", "attempt", "position", "arm", "label", "orientation", "kind")
STATE_COLUMNS = ("state", "reason_code", "is_counted", "is_busy")
TIME_COLUMNS = tuple(field.name for field in dataclasses.fields(SlotTimes))
MEMORY_COLUMNS = tuple(field.name for field in dataclasses.fields(SlotMemory))
HASH_COLUMNS = ("file_sha256", "pixels_sha256", "raw_sha256", "latents_sha256")
COLUMNS = (
    *PLACE_COLUMNS,
    *STATE_COLUMNS,
    *TIME_COLUMNS,
    "wall_s",
    *MEMORY_COLUMNS,
    "outputs",
    *HASH_COLUMNS,
    "slot",
    "reason",
)
FORMULA_STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠", "﹦", "﹢", "﹣", "﹫", "\u2212")
"""Spreadsheets read the wide and the small forms of these characters too, and some the minus sign."""
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
"""Some programs take these from the start of a cell."""
NO_HASH = "none"

Value = str | int | float | None


def render_csv(analysis: CampaignAnalysis) -> str:
    """All slots of a campaign, cell by cell in the order they ran, under one line of column names.

    Times are seconds and memory is MiB, at full precision; what a slot did not record is empty. Of several outputs the
    hashes stand in one field, in the order of the outputs, parted by spaces.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    clean = Cleaner().text
    for runs in analysis.all_runs:
        counted = {run.record.id for run in runs.runs}
        for slot in runs.slots:
            row = _row(slot, is_counted=slot.id in counted)
            writer.writerow([_field(row[name], clean) for name in COLUMNS])
    return text.getvalue()


def _row(slot: SlotRecord, *, is_counted: bool) -> dict[str, Value]:
    busy = slot.contention.busy
    return {
        **{name: getattr(slot, name) for name in PLACE_COLUMNS},
        "state": slot.state,
        "reason_code": slot.reason_code,
        "is_counted": _yes_or_no(is_counted),
        "is_busy": None if busy is None else _yes_or_no(busy),
        **dataclasses.asdict(slot.times),
        "wall_s": slot.wall_s,
        **dataclasses.asdict(slot.memory),
        "outputs": len(slot.outputs),
        **{name: _hashes(slot.outputs, name) for name in HASH_COLUMNS},
        "slot": slot.id,
        "reason": slot.reason,
    }


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def _hashes(outputs: Sequence[SlotOutput], name: str) -> str | None:
    found = [getattr(output, name) for output in outputs]
    return " ".join(value or NO_HASH for value in found) if any(found) else None


def _field(value: Value, clean: Callable[[str], str]) -> Value:
    """A number as it is; a text cleaned, with control characters spelled out, on one line and never a formula."""
    if not isinstance(value, str):
        return value
    text = visible(" ".join(clean(value).split()))
    return f"'{text}" if text.lstrip(INVISIBLE).startswith(FORMULA_STARTS) else text
