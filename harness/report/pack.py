"""One archive of a campaign to attach to a pull request. The same folder and options always give the same bytes."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.atomic_files import temporary_beside
from fuseproof.harness.campaign.folder import PERF_FILE, Campaign
from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.media.decoding import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.harness.report.pull_request import ASSETS_FOLDER, BODY_FILE, picture_assets, render_body
from fuseproof.harness.report.sums import noted_lines
from fuseproof.harness.verification.signature import LEFT_OUT_FILE, LOG_NAMES
from fuseproof.harness.verification.verify import verify_campaign

FIRST_ZIP_MOMENT = (1980, 1, 1, 0, 0, 0)
PLAIN_FILE_MODE = 0o100644 << 16
UNIX = 3
_STORED_SUFFIXES = (IMAGE_SUFFIXES | VIDEO_SUFFIXES) - {".npy", ".bmp"}
"""Compressed already."""


@dataclass(frozen=True)
class Packed:
    """What was written; sizes are bytes. ``suspicious`` are files that hold what looks like a secret or a home."""

    archive: Path
    archive_bytes: int
    files: int
    picture_bytes: int
    log_bytes: int
    logs: int
    assets: tuple[str, ...]
    body_characters: int
    is_verified: bool
    suspicious: tuple[str, ...]


@dataclass(frozen=True)
class _Entry:
    """A member of the archive: a file of the campaign, or text that is made for it."""

    name: str
    source: Path | None = None
    text: str = ""

    @property
    def size(self) -> int:
        return len(self.text.encode("utf-8")) if self.source is None else self.source.stat().st_size


def pack_campaign(
    directory: Path,
    archive: Path,
    *,
    base_url: str | None = None,
    has_logs: bool = True,
    allows_unverified: bool = False,
) -> Packed:
    """Write ``archive``: the campaign folder, ``pull-request.md`` and the pictures that it shows, under flat names.

    Raises :class:`UsageError` where ``archive`` exists or lies inside the campaign, :class:`FuseproofError` for a
    folder that does not pass verification, unless ``allows_unverified``: then the body's first line says so.
    """
    _refuse_target(directory, archive)
    campaign = Campaign.open(directory)
    unverified = _failure(directory)
    if unverified is not None and not allows_unverified:
        raise FuseproofError(
            f"{directory} is not packed, because it does not pass fuseproof verify: {unverified}",
            next_step="Restore the folder, or pack it as it is with --unverified: the body will say so.",
        )
    analysis = analyse(campaign)
    body, shown = render_body(analysis, archive.name, base_url, unverified)
    assets = picture_assets(analysis)
    evidence = list(_evidence(directory, None if has_logs else slots_timed_by_logs(campaign)))
    entries = [
        _Entry(BODY_FILE, text=body),
        *(
            _Entry(f"{ASSETS_FOLDER}/{assets[path]}", directory / path)
            for path in shown
            if (directory / path).is_file()
        ),
        *evidence,
    ]
    _write(archive, entries)
    logs = [entry for entry in evidence if Path(entry.name).name in LOG_NAMES]
    return Packed(
        archive=archive,
        archive_bytes=archive.stat().st_size,
        files=len(entries),
        picture_bytes=_bytes(entry for entry in entries if _is_picture(entry)),
        log_bytes=_bytes(logs),
        logs=len(logs),
        assets=tuple(sorted(assets[path] for path in shown)),
        body_characters=len(body),
        is_verified=unverified is None,
        suspicious=tuple(_suspicious(evidence)),
    )


def _refuse_target(directory: Path, archive: Path) -> None:
    if os.path.lexists(archive):
        raise UsageError(f"{archive} exists, and is not replaced.", next_step="Remove it, or name another: --output.")
    if archive.resolve().is_relative_to(directory.resolve()):
        raise UsageError(
            f"{archive} lies inside the campaign folder, whose files are signed.", next_step="Choose a place beside it."
        )


def _failure(directory: Path) -> str | None:
    verification = verify_campaign(directory)
    if verification.is_verified:
        return None
    amount = len(verification.findings)
    return f"{amount} difference{'' if amount == 1 else 's'}, the first: {verification.first_text}."


def slots_timed_by_logs(campaign: Campaign) -> frozenset[str]:
    """Folders of the slots whose client time stands in their logs alone, relative to the campaign."""
    timed = (record for record in campaign.slots() if record.times.client_s is not None)
    return frozenset(record.directory for record in timed if not _dump_has_client(campaign, record.directory))


def _dump_has_client(campaign: Campaign, slot: str) -> bool:
    try:
        return read_perf_dump(campaign.directory / slot / PERF_FILE).client_ms is not None
    except FuseproofError:
        return False


def _evidence(directory: Path, kept_logs: frozenset[str] | None) -> Iterator[_Entry]:
    """The campaign's regular files below its own name; logs that are left out are listed with their hashes.

    ``kept_logs`` are the slots whose logs stay; None keeps all of them.
    """
    root = directory.resolve().name
    noted = noted_lines(directory)
    left_out = []
    for path in sorted(_regular_files(directory)):
        name = path.relative_to(directory).as_posix()
        is_kept = kept_logs is None or name.rpartition("/")[0] in kept_logs
        if is_kept or path.name not in LOG_NAMES:
            yield _Entry(f"{root}/{name}", path)
        elif name in noted:
            left_out.append(f"{noted[name]}\n")
    if left_out:
        yield _Entry(f"{root}/{LEFT_OUT_FILE}", text="".join(left_out))


def _regular_files(directory: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink():
                yield path


def _write(archive: Path, entries: Iterable[_Entry]) -> None:
    """All of the archive or nothing: a temporary file in the same folder, then a rename."""
    temporary = temporary_beside(archive)
    try:
        with zipfile.ZipFile(temporary, "x") as stream:
            for entry in sorted(entries, key=lambda entry: entry.name):
                _add(stream, entry)
        _publish(temporary, archive)
    except OSError as error:
        raise FuseproofError(
            f"{archive} could not be written: {error.strerror or error}.",
            next_step="Choose a folder that exists, is writable and has space: --output.",
        ) from error
    except UnicodeEncodeError as error:
        raise FuseproofError(
            f"A file of the campaign has a name that is no UTF-8, which no archive holds: {error.object!r}.",
            next_step="Measure again with an arm that writes other names.",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _publish(temporary: Path, archive: Path) -> None:
    """A link never replaces a file that came meanwhile; some file systems have none, and then it is a rename."""
    try:
        os.link(temporary, archive)
    except FileExistsError:
        raise
    except OSError:
        temporary.rename(archive)


def _add(stream: zipfile.ZipFile, entry: _Entry) -> None:
    info = zipfile.ZipInfo(entry.name, FIRST_ZIP_MOMENT)
    info.create_system, info.external_attr = UNIX, PLAIN_FILE_MODE
    is_stored = Path(entry.name).suffix.lower() in _STORED_SUFFIXES
    info.compress_type = zipfile.ZIP_STORED if is_stored else zipfile.ZIP_DEFLATED
    content = entry.text.encode("utf-8") if entry.source is None else entry.source.read_bytes()
    stream.writestr(info, content)


def _is_picture(entry: _Entry) -> bool:
    return Path(entry.name).suffix.lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES


def _bytes(entries: Iterable[_Entry]) -> int:
    return sum(entry.size for entry in entries)


def _suspicious(entries: Iterable[_Entry]) -> Iterator[str]:
    """Files in the arms' own words that hold what the report would have redacted."""
    for entry in entries:
        if entry.source is not None and Path(entry.name).name in {*LOG_NAMES, PERF_FILE}:
            text = entry.source.read_text(encoding="utf-8", errors="replace")
            if redact(text) != text:
                yield entry.name
