"""Is every file what ``SHA256SUMS`` lists, and is every file listed?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.left_out import LEFT_OUT_FILE, SUMS_FILE, is_log, left_out_lines, noted_lines
from fuseproof.harness.number_format import count
from fuseproof.harness.report.sums import checksums, temporary_files
from fuseproof.harness.verification.findings import SIGNATURE, Check, Finding
from fuseproof.harness.verification.lines import line_findings


def check_signature(campaign: Campaign) -> Check:
    """Hash every file of the folder; findings are changed, missing and unlisted files."""
    directory = campaign.directory
    noted = noted_lines(directory)
    present = {line.partition("  ")[2]: line for line in checksums(campaign).split("\n") if line}
    if not noted:
        missing = Finding(SUMS_FILE, "is missing or lists nothing, so nothing was signed")
        return Check(SIGNATURE, {"files listed": 0, "files": len(present)}, (missing,))
    left_out = set(left_out_lines(directory, noted)) | ({LEFT_OUT_FILE} - noted.keys()) & present.keys()
    findings = [
        Finding(name, _problem(noted.get(name), present.get(name)))
        for name in sorted({*noted, *present} - left_out)
        if noted.get(name) != present.get(name)
    ]
    findings += [*_strange_lines(directory, len(noted)), *_left_out_findings(directory, noted, left_out)]
    notes = _left_out_notes(left_out - {LEFT_OUT_FILE})
    notes += [
        f"{name} is left of a session that was killed while it wrote: no evidence"
        for name in temporary_files(directory)
    ]
    return Check(SIGNATURE, {"files listed": len(noted), "files": len(present)}, tuple(findings), tuple(notes))


def changed_files(signature: Check) -> frozenset[str]:
    """The names that a signature check found to be other than they are listed."""
    return frozenset(finding.file for finding in signature.findings)


def _left_out_notes(names: Collection[str]) -> list[str]:
    """How much is gone, by kind; kept raw arrays are outputs."""
    logs = sum(map(is_log, names))
    slots = sum(name.startswith("slots/") for name in names) - logs
    kinds = {"log": logs, "output": slots, "drawn file": len(names) - slots - logs}
    gone = [count(amount, kind) for kind, amount in kinds.items() if amount]
    what = " and ".join([", ".join(gone[:-1]), gone[-1]] if len(gone) > 1 else gone)
    return [f"{what} were left out when the folder was packed; {SUMS_FILE} keeps their hashes"] if gone else []


def _left_out_findings(directory: Path, noted: Mapping[str, str], left_out: Collection[str]) -> Iterator[Finding]:
    """The list of what was left out was written after the signature: it may say what follows from that and no more."""
    if not left_out:
        return
    expected = "".join(f"{noted[name]}\n" for name in sorted(left_out) if name != LEFT_OUT_FILE)
    stated = (directory / LEFT_OUT_FILE).read_bytes().decode("utf-8", "surrogateescape")
    source = f"the files of {SUMS_FILE} that are missing and may be"
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
