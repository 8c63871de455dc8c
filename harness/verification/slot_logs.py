"""The end of a slot's log as its record quotes it, and the times that ``fuseproof generate`` prints at its end."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fuseproof.harness.campaign.evidence import log_tail, read_tail
from fuseproof.harness.campaign.folder import RESULT_FILE, Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.machine.redaction import REDACTED
from fuseproof.harness.report.privacy import clean_text
from fuseproof.harness.verification.findings import Finding

PRINTED_DIGITS_S = 0.00051
_PRINTED = re.compile(r"^worker (?P<worker>\d+\.\d{3}) s, denoise (?P<denoise>\d+\.\d{3}) s", re.MULTILINE)
_FOLDERS = re.compile(r"\S*(?=slots/[^\s/]+/\d\d)")


def log_findings(campaign: Campaign, record: SlotRecord) -> Iterator[Finding]:
    """Quotes of a log that says something else; a log that was left out of an archive says nothing.

    A record that quotes nothing claims nothing.
    """
    folder = campaign.directory / record.directory
    stderr, stdout = folder / "stderr.log", folder / "stdout.log"
    if campaign.origin is not None or record.returncode is None or not (stderr.is_file() and stdout.is_file()):
        return
    file = f"{record.directory}/{RESULT_FILE}"
    kept = log_tail(stderr, stdout, campaign.directory.absolute())  # a relative name may end another folder's
    stated = record.log_tail
    if stated and len(kept) != len(stated):
        yield Finding(file, None, "number of lines in log_tail", len(stated), len(kept), "the slot's logs")
    for index, (own, wanted) in enumerate(zip(stated, kept, strict=False)):
        if _comparable(own) != _comparable(wanted) and REDACTED not in own:
            yield Finding(file, None, f"log_tail[{index}]", own, wanted, "the slot's logs")
            return
    if campaign.plan.arm(record.arm).command is None:
        yield from _printed_findings(record, f"{read_tail(stderr)}\n{read_tail(stdout)}", file)


def _printed_findings(record: SlotRecord, text: str, file: str) -> Iterator[Finding]:
    printed = _PRINTED.findall(text)
    for key, text_s in zip(("worker_s", "denoise_s"), printed[-1] if len(printed) == 1 else (), strict=False):
        stated = getattr(record.times, key)
        if stated is not None and abs(stated - float(text_s)) > PRINTED_DIGITS_S:
            yield Finding(file, None, f"times.{key}", stated, float(text_s), f"{record.directory}, its logs")


def _comparable(line: str) -> str:
    """A line without folders, which are other ones on another machine."""
    return _FOLDERS.sub("", clean_text(line))
