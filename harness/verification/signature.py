"""Is every file what ``SHA256SUMS`` lists, and is every file listed?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report.sums import SUMS_FILE, checksums, noted_lines, temporary_files
from fuseproof.harness.verification.findings import SIGNATURE, Check, Finding
from fuseproof.harness.verification.lines import line_findings

LOG_NAMES = frozenset({"stdout.log", "stderr.log"})
LEFT_OUT_FILE = "left-out.txt"
"""Lines of ``SHA256SUMS``: the logs that ``fuseproof pack --without-logs`` has left out, which no number rests on."""


def check_signature(campaign: Campaign) -> Check:
    """Hash every file of the folder; findings are changed, missing and unlisted files."""
    directory = campaign.directory
    noted = noted_lines(directory)
    present = {line.partition("  ")[2]: line for line in checksums(campaign).split("\n") if line}
    if not noted:
        missing = Finding(SUMS_FILE, "is missing or lists nothing, so nothing was signed")
        return Check(SIGNATURE, {"files listed": 0, "files": len(present)}, (missing,))
    left_out = _left_out(directory, noted, present)
    findings = [
        Finding(name, _problem(noted.get(name), present.get(name)))
        for name in sorted({*noted, *present} - left_out)
        if noted.get(name) != present.get(name)
    ]
    findings += [*_strange_lines(directory, len(noted)), *_left_out_findings(directory, noted, left_out)]
    logs = len(left_out) - 1
    notes = [f"{logs} logs were left out when the folder was packed"] if logs > 0 else []
    notes += [
        f"{name} is left of a session that was killed while it wrote: no evidence"
        for name in temporary_files(directory)
    ]
    return Check(SIGNATURE, {"files listed": len(noted), "files": len(present)}, tuple(findings), tuple(notes))


def changed_files(signature: Check) -> frozenset[str]:
    """The names that a signature check found to be other than they are listed."""
    return frozenset(finding.file for finding in signature.findings)


def _left_out(directory: Path, noted: Mapping[str, str], present: Mapping[str, str]) -> set[str]:
    """Missing logs, and the file that lists them, where the folder has one that was not signed; nothing but logs."""
    if LEFT_OUT_FILE not in present or LEFT_OUT_FILE in noted:
        return set()
    return {LEFT_OUT_FILE, *(name for name in noted if name not in present and PurePosixPath(name).name in LOG_NAMES)}


def _left_out_findings(directory: Path, noted: Mapping[str, str], left_out: Collection[str]) -> Iterator[Finding]:
    """The list of left-out logs is written after the signature, so it may say what follows from that and no more."""
    if not left_out:
        return
    expected = "".join(f"{noted[name]}\n" for name in sorted(left_out) if name != LEFT_OUT_FILE)
    stated = (directory / LEFT_OUT_FILE).read_bytes().decode("utf-8", "surrogateescape")
    source = f"the logs of {SUMS_FILE} that are missing"
    yield from line_findings(LEFT_OUT_FILE, stated, expected, source)


def _problem(noted: str | None, present: str | None) -> str:
    if present is None:
        return f"is missing, and {SUMS_FILE} lists it"
    return f"is not in {SUMS_FILE}" if noted is None else f"is not the file that {SUMS_FILE} lists"


def _strange_lines(directory: Path, known: int) -> Iterator[Finding]:
    text = (directory / SUMS_FILE).read_bytes().decode("utf-8", "surrogateescape")
    lines = [line for line in text.split("\n") if line]
    if len(lines) != known:
        yield Finding(SUMS_FILE, f"has {len(lines) - known} lines that are no checksums or name a file twice")
