"""Values that no report can hold: numbers that are none, texts that are none. Refused with the file that holds them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.folder import CAMPAIGN_FILE, MISSING, RESULT_FILE, Campaign
from fuseproof.harness.campaign.records import DAMAGED_STEP, SlotRecord
from fuseproof.harness.perf.dump import PerfDump

LARGEST_NUMBER = 1e15
"""Far beyond every time, memory and count; what lies above would overflow in sums and ratios."""

MOST_BLOCKS = 1000
"""Of a plan."""
MOST_ATTEMPTS = 100_000

_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_FILE_NAME_EITHER = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""A file name that is no UTF-8 reaches Python as U+DC80 to U+DCFF, and is a file name all the same."""


def refuse_unsound_campaign(campaign: Campaign) -> None:
    """Raise :class:`FuseproofError` naming file and key of the first value that no report can hold."""
    source = campaign.directory / CAMPAIGN_FILE
    values = {
        "plan": campaign.plan.to_json(),
        "created": campaign.created,
        "fuseproof_version": campaign.fuseproof_version,
        "command": list(campaign.command),
        "environment": dict(campaign.environment),
        "sessions": [session.to_json() for session in campaign.sessions],
        "warnings": [dataclasses.asdict(warning) for warning in campaign.warnings],
        "inputs": [dataclasses.asdict(file) for file in campaign.inputs],
        "origin": campaign.origin.to_json() if campaign.origin is not None else None,
        "from": campaign.plan_source.to_json() if campaign.plan_source is not None else None,
    }
    for index, word in enumerate(campaign.command):
        if not isinstance(word, str):
            raise _error(source, f"command.{index}", "is no text")
    _refuse(source, values)
    for record in campaign.slots():
        _refuse_record(source if record.reason_code == MISSING else _result(campaign, record), record)


def refuse_unsound_dump(dump: PerfDump) -> None:
    """The same for a perf dump, whose numbers were checked when it was read."""
    _refuse(dump.path, dump.raw, has_numbers=False)


def _result(campaign: Campaign, record: SlotRecord) -> Path:
    return campaign.directory / record.directory / RESULT_FILE


def _refuse_record(source: Path, record: SlotRecord) -> None:
    for key, largest in (("block", MOST_BLOCKS), ("attempt", MOST_ATTEMPTS)):
        number = getattr(record, key)
        if not 1 <= number <= largest:
            raise _error(source, key, f"is {number}, expected 1 to {largest}")
    for index, output in enumerate(record.outputs):
        path = output.path
        if _NO_FILE_NAME_EITHER.search(path) or "\0" in path:
            raise _error(source, f"outputs.{index}.path", "is no file name")
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise _error(source, f"outputs.{index}.path", "leads out of the slot's folder")
        _refuse(source, _but(output, "path"), f"outputs.{index}.")
    # a command may name files whose names are no UTF-8
    _refuse(source, _but(record, "outputs", "command"))


def _but(value: Any, *names: str) -> dict[str, Any]:
    """The fields of a dataclass without some, not copied: a thousand records hold a lot."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.name not in names}


def _refuse(source: Path, values: Any, prefix: str = "", *, has_numbers: bool = True) -> None:
    for key, value in _leaves(values, prefix):
        if isinstance(value, str):
            found = None if value.isascii() else _SURROGATE.search(value)
            if found:
                raise _error(source, key, f"holds U+{ord(found.group(0)):04X}, half a character")
        elif has_numbers and not _is_sound(value):
            raise _error(source, key, f"is {value:g}, expected a finite number below {LARGEST_NUMBER:g}")


def _is_sound(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= LARGEST_NUMBER


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, str | float]]:
    """Texts and floats at any depth with their dotted keys; a mapping's own keys are texts too."""
    if isinstance(value, str | float):
        yield key.removesuffix("."), value
    elif value is None or isinstance(value, int):
        return
    elif isinstance(value, dict | Mapping):  # dict first: the abstract class is slow to ask
        for name, entry in value.items():
            yield f"{key}(a key)", str(name)
            yield from _leaves(entry, f"{key}{name}.")
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            yield from _leaves(entry, f"{key}{index}.")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{key}{field.name}.")


def _error(source: Path, key: str, problem: str) -> FuseproofError:
    printable = key.encode("utf-8", "backslashreplace").decode("utf-8")
    name = str(source).encode("utf-8", "backslashreplace").decode("utf-8")
    return FuseproofError(f"{name}: {printable} {problem}.", next_step=DAMAGED_STEP)
