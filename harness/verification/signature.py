"""Is every file what ``SHA256SUMS`` lists, and is every file listed?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report.sums import SUMS_FILE, checksums, noted_lines
from fuseproof.harness.verification.findings import SIGNATURE, Check, Finding

LOG_NAMES = frozenset({"stdout.log", "stderr.log"})
LEFT_OUT_FILE = "left-out.txt"
"""Lines of ``SHA256SUMS``: the logs that ``fuseproof pack --without-logs`` has left out, which no number rests on."""


def check_signature(campaign: Campaign) -> Check:
    """Hash every file of the folder; findings are changed, missing and unlisted files, and links."""
    directory = campaign.directory
    noted = noted_lines(directory)
    present = {line.partition("  ")[2]: line for line in checksums(campaign).split("\n") if line}
    if not noted:
        missing = Finding(SUMS_FILE, "is missing or lists nothing, so nothing was signed")
        return Check(SIGNATURE, {"files listed": 0, "files": len(present)}, (missing, *_links(directory)))
    left_out = _left_out(directory, noted, present)
    findings = [
        Finding(name, _problem(noted.get(name), present.get(name)))
        for name in sorted({*noted, *present} - left_out)
        if noted.get(name) != present.get(name)
    ]
    findings += [*_strange_lines(directory, len(noted)), *_links(directory)]
    notes = (f"{len(left_out) - 1} logs were left out when the folder was packed",) if left_out else ()
    return Check(SIGNATURE, {"files listed": len(noted), "files": len(present)}, tuple(findings), notes)


def changed_files(signature: Check) -> frozenset[str]:
    """The names that a signature check found to be other than they are listed."""
    return frozenset(finding.file for finding in signature.findings)


def _left_out(directory: Path, noted: Mapping[str, str], present: Mapping[str, str]) -> set[str]:
    """Missing logs that the folder itself says were left out, and the file that says so; nothing but logs."""
    if LEFT_OUT_FILE not in present or LEFT_OUT_FILE in noted:
        return set()
    lines = (directory / LEFT_OUT_FILE).read_bytes().decode("utf-8", "surrogateescape").split("\n")
    logs = {name for name in noted if name not in present and PurePosixPath(name).name in LOG_NAMES}
    return {LEFT_OUT_FILE, *(name for name in logs if noted[name] in lines)}


def _problem(noted: str | None, present: str | None) -> str:
    if present is None:
        return f"is missing, and {SUMS_FILE} lists it"
    return f"is not in {SUMS_FILE}" if noted is None else f"is not the file that {SUMS_FILE} lists"


def _strange_lines(directory: Path, known: int) -> Iterator[Finding]:
    text = (directory / SUMS_FILE).read_bytes().decode("utf-8", "surrogateescape")
    lines = [line for line in text.split("\n") if line]
    if len(lines) != known:
        yield Finding(SUMS_FILE, f"has {len(lines) - known} lines that are no checksums or name a file twice")


def _links(directory: Path) -> Iterator[Finding]:
    for folder, folders, names in os.walk(directory):
        for name in sorted([*folders, *names]):
            path = Path(folder) / name
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                what = "a link" if path.is_symlink() else "no regular file"
                yield Finding(path.relative_to(directory).as_posix(), f"is {what}, and evidence is kept in files")
