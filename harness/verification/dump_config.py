"""What a dump of ours says of the command that wrote it, against the slot in which it lies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath, PurePosixPath

from fuseproof.harness.campaign.folder import PERF_FILE, RESULT_FILE, Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.perf.dump import SCHEMA, PerfDump
from fuseproof.harness.verification.findings import Finding

NUMBERS = ("num_inference_steps", "guidance_scale", "seed", "warmup_steps")
"""Keys of ``config`` that hold what their flags say; sizes may be those of an input picture instead."""
SWITCHED = ("auto", "off")
"""Values of ``--fastpaths`` that are written as they were given."""


def config_findings(campaign: Campaign, record: SlotRecord, dump: PerfDump) -> Iterator[Finding]:
    """A dump names the place that it was written to, and the values of its flags."""
    if campaign.origin is not None or dump.schema != SCHEMA:
        return
    file, place = f"{record.directory}/{PERF_FILE}", dump.config.get("perf_dump_path")
    if isinstance(place, str) and PurePath(place).name == PERF_FILE and not place.endswith(f"{record.id}/{PERF_FILE}"):
        own = PurePosixPath(*PurePosixPath(place).parts[-4:])
        yield Finding(file, None, "config.perf_dump_path", str(own), file, "the place where it lies")
    if campaign.plan.arm(record.arm).command is not None:
        return
    for key, text in _given(record.command):
        stated = dump.config.get(key)
        if _contradicts(key, text, stated, dump):
            yield Finding(file, None, f"config.{key}", stated, text, f"{RESULT_FILE} command")


def _contradicts(key: str, text: str, stated: object, dump: PerfDump) -> bool:
    if key not in NUMBERS:
        return text != stated and {text, stated} <= {*SWITCHED}
    number = _number(text)
    if number is None or not isinstance(stated, int | float):
        return False
    if key == "warmup_steps" and dump.config.get("guidance_skipped_steps"):
        return stated < number  # lengthened to meet both kinds of step
    return stated != number


def _given(words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Flags of a command by their key in ``config``; the last of each counts."""
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        flag, separator, value = word.partition("=")
        key = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and key in (*NUMBERS, "fastpaths"):
            found[key] = value if separator else words[index + 1] if index + 1 < len(words) else ""
    yield from found.items()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
