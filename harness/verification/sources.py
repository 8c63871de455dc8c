"""Hashes that ``campaign.json`` holds of files: what the slots read, and what an imported campaign was made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fuseproof.harness.campaign.folder import CAMPAIGN_FILE, OUTPUTS_FOLDER, PERF_FILE, Campaign
from fuseproof.harness.campaign.left_out import LOG_NAMES
from fuseproof.harness.campaign.origin import OriginFile
from fuseproof.harness.media.files import file_sha256
from fuseproof.harness.verification.findings import Finding, Tally


def source_findings(campaign: Campaign, tally: Tally) -> Iterator[Finding]:
    """Kept inputs and imported files that are not those whose hashes were written down first."""
    for index, kept in enumerate(campaign.inputs):
        if kept.copy is None:
            continue
        parts = PurePosixPath(kept.copy).parts
        if ".." in parts or kept.copy.startswith("/"):
            yield Finding(
                CAMPAIGN_FILE, f"names a kept input outside the folder: inputs[{index}].copy is {kept.copy!r}"
            )
        elif not (campaign.directory / kept.copy).is_file():
            yield Finding(kept.copy, f"is missing, though {CAMPAIGN_FILE} inputs[{index}] says that it was kept")
        else:
            place = f"{CAMPAIGN_FILE} inputs[{index}].sha256"
            yield from _compare(campaign, [campaign.directory / kept.copy], kept.sha256, place, tally)
    for index, file in enumerate(campaign.origin.files if campaign.origin is not None else ()):
        if file.slot is not None:
            place = f"{CAMPAIGN_FILE} origin.files[{index}].sha256"
            yield from _compare(campaign, _copies(campaign, file), file.sha256, place, tally)


def _copies(campaign: Campaign, file: OriginFile) -> list[Path]:
    """The files of a slot of which one is the imported one; logs that are gone are the signature's business."""
    folder = campaign.slot_directory(str(file.slot))
    if file.kind == "perf dump":
        return [folder / PERF_FILE]
    if file.kind == "log":
        return [path for name in sorted(LOG_NAMES) if (path := folder / name).is_file()]
    return sorted(path for path in (folder / OUTPUTS_FOLDER).rglob("*") if path.is_file())


def _compare(campaign: Campaign, paths: list[Path], expected: str, source: str, tally: Tally) -> Iterator[Finding]:
    present = [path for path in paths if path.is_file()]
    hashes = [file_sha256(path) for path in present]
    tally.count("hashes recomputed", bool(hashes))
    if not hashes or expected in hashes:
        return
    name = present[0].relative_to(campaign.directory).as_posix()
    yield Finding(name, None, "its SHA-256", hashes[0], expected, source)
