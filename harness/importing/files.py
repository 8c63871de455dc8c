"""The files of an import: which ones there are, what lies beside a dump, and how they are copied.

Files are imported, links are not: a link could pass another run's picture off as this one's, or carry a private file
into a folder that is made to be shared.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.folder import OUTPUTS_FOLDER
from fuseproof.harness.campaign.sglang_log import LARGEST_LOG_BYTES
from fuseproof.harness.media.decoding import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from fuseproof.harness.media.files import file_sha256
from fuseproof.harness.perf.dump import PerfDump

DUMP_SUFFIX = ".json"
OUTPUT_SUFFIXES = IMAGE_SUFFIXES | VIDEO_SUFFIXES | {".glb", ".obj", ".wav", ".flac", ".mp3", ".framehash"}
LARGEST_OUTPUT_BYTES = 4 * 1024**3
MOST_FILES = 50_000
DEEPEST = 12
"""Folders above a file that are looked at."""
LOG_NAMES = {"stdout.log": (".log", ".stdout.log", ".out"), "stderr.log": (".stderr.log", ".err")}
"""Name in the slot's folder → endings beside a dump X.json: X.log and so on."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def shown_text(text: str) -> str:
    """``text`` with half characters, as names that are no UTF-8 give them, replaced."""
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


@dataclass(frozen=True)
class SourceFile:
    """A file to import: where it lies, and what it is called in reports (its source folder's name first)."""

    path: Path
    name: Path

    @property
    def shown(self) -> str:
        """The name as text that any file can hold."""
        return shown_text(self.name.as_posix())


@dataclass(frozen=True)
class Companions:
    """What belongs to one dump: logs by their name in the slot's folder, outputs with their name below ``outputs/``."""

    logs: tuple[tuple[str, SourceFile], ...] = ()
    outputs: tuple[tuple[str, SourceFile], ...] = ()
    stated_but_missing: tuple[str, ...] = ()
    """Names of outputs that the dump states and that do not lie beside it."""

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return tuple(file for _, file in (*self.logs, *self.outputs))


def source_files(sources: Sequence[Path]) -> list[SourceFile]:
    """Every file of the sources, folders walked, hidden files left out, sorted by name.

    Raises :class:`FuseproofError` for a source that is missing or neither file nor folder, :class:`UsageError` for one
    given twice.
    """
    found: dict[Path, SourceFile] = {}
    for source in sources:
        try:
            resolved = source.resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FuseproofError(
                f"{source} cannot be read: {reason}.", next_step="Give folders or files that exist."
            ) from error
        files = list(_walked(resolved)) if resolved.is_dir() else [_single(source, resolved)]
        for file in files:
            if file.path in found:
                raise UsageError(
                    f"{file.path} is given twice, by itself or as part of a folder.", next_step="Give every file once."
                )
            found[file.path] = file
        if len(found) > MOST_FILES:
            raise UsageError(
                f"{source} holds more than {MOST_FILES} files.", next_step="Give the folders that hold the dumps."
            )
    return sorted(found.values(), key=lambda file: os.fsencode(file.name))


def named_file(path: Path, name: str) -> SourceFile:
    """A file that a manifest names; an absolute name is shown by its last part."""
    return SourceFile(path, Path(Path(name).name) if Path(name).is_absolute() else Path(name))


def check_plain(file: SourceFile, largest_bytes: int | None = None) -> None:
    """Raise :class:`FuseproofError` unless ``file`` is a regular file, no link, and not too large."""
    try:
        status = file.path.lstat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FuseproofError(f"{file.path} cannot be read: {reason}.", next_step="Give files that exist.") from error
    if stat.S_ISLNK(status.st_mode):
        raise FuseproofError(
            f"{file.path} is a symbolic link; files are imported, links are not.",
            next_step="Copy the file itself to that place.",
        )
    if not stat.S_ISREG(status.st_mode):
        what = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
        raise FuseproofError(f"{file.path} is {what}, expected a regular file.", next_step="Give the file itself.")
    if largest_bytes is not None and status.st_size > largest_bytes:
        raise FuseproofError(
            f"{file.path} is larger than {largest_bytes // 2**20} MiB.",
            next_step="Take it out of the folder, or cut it down.",
        )


class Neighbours:
    """Files by what they may belong to: those called like a dump, and those in its folder."""

    def __init__(self, files: Iterable[SourceFile]) -> None:
        self.by_path = {file.path: file for file in files}
        self._named: dict[tuple[Path, str], list[SourceFile]] = defaultdict(list)
        self._in_folder: dict[Path, list[SourceFile]] = defaultdict(list)
        for file in self.by_path.values():
            folder, *above = list(file.path.parents)[:DEEPEST]
            self._in_folder[folder].append(file)
            parts = file.path.name.split(".")
            for length in range(1, len(parts)):
                self._named[folder, ".".join(parts[:length])].append(file)
            for parent, child in zip(above, file.path.parents, strict=False):
                self._named[parent, child.name].append(file)

    def of(self, dump: Path, *, is_alone: bool) -> list[SourceFile]:
        """What is called like ``dump`` (X.png, X/...); with its whole folder, and ``outputs/``, if it ``is_alone``."""
        found = list(self._named.get((dump.parent, dump.stem), ()))
        if is_alone:
            found += [*self._in_folder.get(dump.parent, ()), *self._named.get((dump.parent, OUTPUTS_FOLDER), ())]
        return [file for file in dict.fromkeys(found) if file.path != dump]


def companions(dump: SourceFile, read: PerfDump, neighbours: Neighbours, *, is_alone: bool) -> Companions:
    """What lies beside ``dump``: X.log, X.png, X/ and the like for X.json, and outputs that the dump states.

    A dump that ``is_alone`` in its folder owns what lies there.
    """
    folder, stem = dump.path.parent, dump.path.stem
    logs: dict[str, SourceFile] = {}
    outputs: dict[str, SourceFile] = {}
    for file in neighbours.of(dump.path, is_alone=is_alone):
        relative = file.path.relative_to(folder)
        log = _log_name(relative, stem, is_alone)
        output = _output_name(relative, stem, is_alone)
        if log is not None:
            logs.setdefault(log, file)
        elif output is not None:
            outputs.setdefault(output, file)
    missing = _add_stated(read, folder, neighbours.by_path, outputs)
    return Companions(tuple(sorted(logs.items())), tuple(sorted(outputs.items())), missing)


def copy_file(file: SourceFile, target: Path, largest_bytes: int = LARGEST_OUTPUT_BYTES) -> str:
    """Copy the bytes of ``file`` and return their SHA-256; the copy is nobody's link and has usual permissions."""
    check_plain(file, largest_bytes)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.path, target)
    except OSError as error:
        raise FuseproofError(
            f"{file.path} cannot be copied: {error.strerror or error}.",
            next_step="Check its permissions and the free space where the campaign folder will be.",
        ) from error
    return file_sha256(target)


def below(path: Path, name: str) -> Iterator[tuple[str, SourceFile]]:
    """A file, or every file of a folder, that a manifest names as outputs, with the name it gets."""
    if path.is_dir() and not path.is_symlink():
        for file in _walked(path):
            relative = file.path.relative_to(path)
            yield relative.as_posix(), SourceFile(file.path, named_file(path, name).name / relative)
    else:
        yield path.name, named_file(path, name)


def check_log(file: SourceFile) -> None:
    """:func:`check_plain` with the size that a log may have."""
    check_plain(file, LARGEST_LOG_BYTES)


def _walked(folder: Path) -> Iterator[SourceFile]:
    def refuse(error: OSError) -> None:
        raise FuseproofError(
            f"{error.filename} cannot be read: {error.strerror or error}.", next_step="Check its permissions."
        ) from error

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        linked = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in sorted([*names, *linked]):
            if not name.startswith("."):
                path = Path(place) / name
                yield SourceFile(path, Path(folder.name) / path.relative_to(folder))


def _single(source: Path, resolved: Path) -> SourceFile:
    """A file given by itself, with its folder's name, which may say what workload it is."""
    lexical = resolved.parent / resolved.name if not source.is_symlink() else Path(os.path.abspath(source))  # noqa: PTH100
    return SourceFile(lexical, Path(lexical.parent.name) / lexical.name)


def _log_name(relative: Path, stem: str, is_alone: bool) -> str | None:
    if len(relative.parts) > 1:
        return None
    for name, endings in LOG_NAMES.items():
        if relative.name in {f"{stem}{ending}" for ending in endings}:
            return name
    if is_alone and relative.suffix == ".log":
        return relative.name if relative.name in LOG_NAMES else "stdout.log"
    return None


def _output_name(relative: Path, stem: str, is_alone: bool) -> str | None:
    if relative.suffix.lower() not in OUTPUT_SUFFIXES:
        return None
    if len(relative.parts) == 1:
        return relative.name if relative.stem == stem or is_alone else None
    if relative.parts[0] == stem or (is_alone and relative.parts[0] == OUTPUTS_FOLDER):
        return Path(*relative.parts[1:]).as_posix()
    return None


def _add_stated(
    dump: PerfDump, folder: Path, by_path: Mapping[Path, SourceFile], outputs: dict[str, SourceFile]
) -> tuple[str, ...]:
    """Add outputs that the dump names by a path beside it; return the names of those that are not there."""
    missing = []
    for entry in dump.outputs:
        stated = Path(str(entry.get("path") or ""))
        if not stated.name or stated.name in {Path(name).name for name in outputs}:
            continue
        found = by_path.get(folder / stated)
        if found is None or ".." in stated.parts:
            missing.append(stated.name)
        else:
            outputs[stated.name] = found
    return tuple(missing)
