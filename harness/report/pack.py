"""One archive of a campaign to attach to a pull request. The same folder and options always give the same bytes."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.atomic_files import temporary_beside, write_text_atomically
from fuseproof.harness.campaign.folder import CAMPAIGN_FILE, PERF_FILE, Campaign
from fuseproof.harness.campaign.left_out import LEFT_OUT_FILE, is_log, is_medium, left_out_lines, noted_lines
from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.media.decoding import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.harness.report.figure_files import NO_FIGURES, draw_figures
from fuseproof.harness.report.pull_request import ASSETS_FOLDER, BODY_FILE, picture_assets, render_body
from fuseproof.harness.report.sums import is_temporary
from fuseproof.harness.verification.folder import strange_entries
from fuseproof.harness.verification.verify import verify_campaign

FIRST_ZIP_MOMENT = (1980, 1, 1, 0, 0, 0)
PLAIN_FILE_MODE = 0o100644 << 16
UNIX = 3
_STORED_SUFFIXES = (IMAGE_SUFFIXES | VIDEO_SUFFIXES) - {".npy", ".bmp"}
"""Compressed already."""
_MEDIA_SUFFIXES = IMAGE_SUFFIXES | VIDEO_SUFFIXES | {".npy"}
LARGEST_SCAN_BYTES = 64 * 2**20
_ODD = re.compile(r"[^A-Za-z0-9._+-]")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)
"""Names that are no files on Windows."""
_UNSAFE = re.compile(r"[\\\x00-\x1f\x7f]|(?:^|/)[A-Za-z]:")
"""A backslash parts folders on Windows, and a letter with a colon is a drive."""


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
    body_file: Path
    """A copy of the archive's ``pull-request.md``, beside it."""
    body: str
    left_out: int
    """How many files of the campaign are not in the archive, but named with their hashes."""
    is_verified: bool
    suspicious: tuple[str, ...]

    @property
    def body_characters(self) -> int:
        return len(self.body)


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
    has_outputs: bool = True,
    allows_unverified: bool = False,
) -> Packed:
    """Write ``archive``: the campaign folder, ``pull-request.md`` and the pictures that it shows, under flat names.

    Without ``has_outputs`` the pictures, kept raw arrays, ``figures/`` and ``report.html`` stay behind, named in
    ``left-out.txt`` with the hashes that were signed: what is left verifies, and is small.

    Raises :class:`UsageError` where ``archive`` exists or lies inside the campaign, or where a ``base_url`` is given
    for pictures that stay behind; :class:`FuseproofError` for a folder that does not pass verification, unless
    ``allows_unverified``: then the body's first line says so.
    """
    body_file = archive.with_name(f"{archive.stem}.{BODY_FILE}")
    for target in (archive, body_file):
        _refuse_target(directory, target)
    _refuse_shown_pictures(directory, base_url, has_outputs)
    _refuse_links(directory)
    campaign = Campaign.open(directory)
    unverified = _failure(directory)
    if unverified is not None and not allows_unverified:
        raise FuseproofError(
            f"{directory} is not packed, because it does not pass fuseproof verify: {unverified}",
            next_step="Restore the folder, or pack it as it is with --unverified: the body will say so.",
        )
    analysis = analyse(campaign)
    figures = NO_FIGURES if base_url is None else draw_figures(analysis)
    root = archived_name(directory)
    present = {path.relative_to(directory).as_posix(): path for path in _regular_files(directory)}
    kept_logs = None if has_logs else slots_timed_by_logs(campaign)
    behind = _left_behind(directory, present, kept_logs, has_outputs)
    is_light = any(map(is_medium, behind))
    body, shown = render_body(analysis, archive.name, base_url, unverified, figures, root, is_light=is_light)
    assets = picture_assets(analysis, figures)
    evidence = list(_evidence(root, present, behind))
    entries = [
        _Entry(BODY_FILE, text=body),
        *(_Entry(f"{ASSETS_FOLDER}/{assets[path]}", present[path]) for path in shown if path in present),
        *evidence,
    ]
    _write(archive, entries)
    _write_body(body_file, body)
    logs = [entry for entry in evidence if is_log(entry.name)]
    return Packed(
        archive=archive,
        archive_bytes=archive.stat().st_size,
        files=len(entries),
        picture_bytes=_bytes(entry for entry in entries if _is_picture(entry)),
        log_bytes=_bytes(logs),
        logs=len(logs),
        assets=tuple(sorted(assets[path] for path in shown)),
        body_file=body_file,
        body=body,
        left_out=len(behind),
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


def _refuse_shown_pictures(directory: Path, base_url: str | None, has_outputs: bool) -> None:
    if base_url is not None and (not has_outputs or any(map(is_medium, left_out_lines(directory)))):
        raise UsageError(
            "--asset-base-url shows pictures, and the archive is to have none.",
            next_step="Leave out --asset-base-url, or pack the whole folder without --without-outputs.",
        )


def _refuse_links(directory: Path) -> None:
    """Also of an unverified folder: what a link names is nobody's evidence, and may be anybody's file."""
    strange = next(strange_entries(directory), None) if os.path.lexists(directory / CAMPAIGN_FILE) else None
    if strange is not None:
        raise FuseproofError(
            f"{directory} is not packed: {strange.text}.", next_step="Remove it, or put the file itself in its place."
        )


def _failure(directory: Path) -> str | None:
    verification = verify_campaign(directory)
    if verification.is_verified:
        return None
    amount = len(verification.findings)
    return f"{amount} difference{'' if amount == 1 else 's'}, the first: {verification.first_text}."


def slots_timed_by_logs(campaign: Campaign) -> frozenset[str]:
    """Folders of the slots of which a time stands in their logs alone, relative to the campaign."""
    timed = [record for record in campaign.slots() if record.times.client_s is not None]
    printed = [record for record in campaign.slots() if campaign.plan.arm(record.arm).time_pattern is not None]
    by_client = (record for record in timed if not _dump_has_client(campaign, record.directory))
    return frozenset(record.directory for record in (*by_client, *printed))


def _dump_has_client(campaign: Campaign, slot: str) -> bool:
    try:
        return read_perf_dump(campaign.directory / slot / PERF_FILE).client_ms is not None
    except FuseproofError:
        return False


def archived_name(directory: Path) -> str:
    """The campaign's folder in the archive: its own name, as a word of a command line that any system can unpack."""
    name = _ODD.sub("-", directory.resolve().name).lstrip("-.")
    return f"campaign-{name}" if name.lower() in ("", BODY_FILE, ASSETS_FOLDER) or _DEVICE.fullmatch(name) else name


def _left_behind(
    directory: Path, present: Mapping[str, Path], kept_logs: frozenset[str] | None, has_outputs: bool
) -> dict[str, str]:
    """Lines of ``SHA256SUMS``, by name, of what the archive lacks: left out now, or when the folder itself was packed.

    ``kept_logs`` are the slots whose logs stay; None keeps all of them.
    """
    noted = noted_lines(directory)

    def stays_behind(name: str) -> bool:
        is_unwanted_log = is_log(name) and kept_logs is not None and name.rpartition("/")[0] not in kept_logs
        return is_unwanted_log or (not has_outputs and is_medium(name))

    found = left_out_lines(directory, noted)
    return found | {name: noted[name] for name in present if name in noted and stays_behind(name)}


def _evidence(root: str, present: Mapping[str, Path], behind: Mapping[str, str]) -> Iterator[_Entry]:
    """The campaign's regular files below ``root``; what stays ``behind`` is listed with its hashes.

    Raises :class:`FuseproofError` for a name that another system would unpack elsewhere.
    """
    for name, path in sorted(present.items()):
        if _UNSAFE.search(name):
            raise FuseproofError(
                f"The file {name!r} has a name that other systems unpack elsewhere or not at all.",
                next_step="Measure again with an arm that writes other names.",
            )
        if name not in behind and not (name == LEFT_OUT_FILE and behind):
            yield _Entry(f"{root}/{name}", path)
    if behind:
        yield _Entry(f"{root}/{LEFT_OUT_FILE}", text="".join(f"{behind[name]}\n" for name in sorted(behind)))


def _regular_files(directory: Path) -> Iterator[Path]:
    """Files that are evidence: no link, nothing below one, and not what a killed session left half-written."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink() and not is_temporary(name):
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


def _write_body(path: Path, body: str) -> None:
    try:
        write_text_atomically(path, body)
    except OSError as error:
        raise FuseproofError(
            f"{path} could not be written: {error.strerror or error}.",
            next_step=f"The archive is whole, and holds it as {BODY_FILE}.",
        ) from error


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
    """Files that hold what the report would have redacted: logs, dumps, inputs, telemetry, whatever was kept as it was.

    Pictures and arrays are not text, and a file of more than :data:`LARGEST_SCAN_BYTES` is named unread.
    """
    for entry in entries:
        if entry.source is None or Path(entry.name).suffix.lower() in _MEDIA_SUFFIXES:
            continue
        if entry.size > LARGEST_SCAN_BYTES:
            yield entry.name
            continue
        text = entry.source.read_text(encoding="utf-8", errors="replace")
        if redact(text) != text:
            yield entry.name
