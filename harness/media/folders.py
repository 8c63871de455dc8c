"""Compare two files, or two folders pair by pair; the worst pair decides and no mean over pairs is formed."""

from __future__ import annotations

import math
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.media.comparing import Comparison, compare_files
from fuseproof.harness.media.comparison import MediaComparison, check_data_range
from fuseproof.harness.media.decoding import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from fuseproof.harness.media.files import os_reason, printable
from fuseproof.harness.media.pairing import match_names
from fuseproof.schedules.contracts import Contract

_MEDIA_SUFFIXES = IMAGE_SUFFIXES | VIDEO_SUFFIXES


@dataclass(frozen=True)
class Pair:
    """One name in both places: a comparison, or the error that kept it from being made."""

    name: str
    path_a: Path
    path_b: Path
    comparison: Comparison | None
    error: FuseproofError | None = None

    def violations(self, contract: Contract) -> list[str]:
        """How this pair breaks ``contract``; an unreadable pair is an error, not a violation."""
        return [] if self.comparison is None else contract.violations(self.comparison)

    def badness(self) -> tuple[int, float, float, float]:
        """Sorts pairs from best to worst: equal, different (by PSNR, then SSIM), degenerate, mismatched, unreadable."""
        comparison = self.comparison
        if comparison is None:
            return (4, 0.0, 0.0, 0.0)
        if comparison.mismatch is not None:
            return (3, 0.0, 0.0, 0.0)
        if comparison.degenerate:
            return (2, float(comparison.a.nonfinite + comparison.b.nonfinite), 0.0, 0.0)
        closeness = [-math.inf if value is None else -value for value in (comparison.psnr_db, comparison.ssim)]
        return (0 if comparison.identical else 1, closeness[0], closeness[1], comparison.max_abs or 0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": printable(self.name),
            "error": self.error.message if self.error else None,
            "comparison": self.comparison.to_json() if self.comparison else None,
        }


@dataclass(frozen=True)
class MediaReport:
    """All pairs in name order, and the names without a partner; ``ignored`` are files that hold no media."""

    pairs: tuple[Pair, ...]
    only_in_a: tuple[str, ...] = ()
    only_in_b: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def unmatched(self) -> tuple[str, ...]:
        """One sentence a file without a partner."""
        missing = [f"{name} is missing in B" for name in self.only_in_a]
        return tuple(missing + [f"{name} is missing in A" for name in self.only_in_b])

    @property
    def errors(self) -> tuple[FuseproofError, ...]:
        return tuple(pair.error for pair in self.pairs if pair.error)

    def worst(self) -> Pair:
        return max(self.pairs, key=Pair.badness)

    def violations(self, contract: Contract) -> list[str]:
        """Every violation, with the pair's name in front where there are several pairs."""
        is_single = len(self.pairs) == 1 and not self.unmatched
        found = list(self.unmatched)
        for pair in self.pairs:
            prefix = "" if is_single else f"{printable(pair.name)}: "
            found += [prefix + sentence for sentence in pair.violations(contract)]
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "fuseproof.media/1",
            "pairs": [pair.to_json() for pair in self.pairs],
            "only_in_a": list(self.only_in_a),
            "only_in_b": list(self.only_in_b),
            "ignored": list(self.ignored),
            "worst": printable(self.worst().name),
            "warnings": list(self.warnings),
        }


def compare_paths(a: Path, b: Path, *, data_range: float | None = None) -> MediaReport:
    """Compare two files or two folders.

    Raises:
        UsageError: one is a folder and the other is not; a bad ``data_range``.
        FuseproofError: a file is unreadable, a folder cannot be listed, or two folders share no media file name. In a
            folder an unreadable file only fails its own pair.
    """
    check_data_range(data_range)
    is_folder_a, is_folder_b = _is_folder(a), _is_folder(b)
    if is_folder_a != is_folder_b:
        folder, file = (a, b) if is_folder_a else (b, a)
        raise UsageError(
            f"{printable(folder)} is a folder and {printable(file)} is not.",
            next_step="name two files or two folders",
        )
    if is_folder_a:
        return _compare_folders(a, b, data_range)
    comparison = compare_files(a, b, data_range=data_range)
    return MediaReport((Pair(b.name, a, b, comparison),))


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        raise FuseproofError(
            f"{printable(path)} cannot be read: {os_reason(error)}.", next_step="check the path and its permissions"
        ) from error


def _compare_folders(a: Path, b: Path, data_range: float | None) -> MediaReport:
    names_a, names_b = _media_names(a), _media_names(b)
    matched = match_names(names_a.media, names_b.media)
    if not matched.names:
        raise FuseproofError(
            f"{printable(a)} ({len(names_a.media)} media files) and {printable(b)} ({len(names_b.media)}) "
            "share no media file name.",
            next_step="pairs are formed by file name directly inside the two folders, times in names left out; rename "
            "or name two files",
        )
    pairs = tuple(
        _compare_pair(name_b, a / name_a, b / name_b, data_range) for name_a, name_b in sorted(matched.names.items())
    )
    lonely_a, lonely_b = names_a.media - matched.names.keys(), names_b.media - {*matched.names.values()}
    return MediaReport(
        pairs=pairs,
        only_in_a=tuple(printable(name) for name in sorted(lonely_a)),
        only_in_b=tuple(printable(name) for name in sorted(lonely_b)),
        ignored=tuple(printable(name) for name in sorted(names_a.others | names_b.others)),
        warnings=(*matched.notes(), *_folder_warnings(a, b, pairs)),
    )


@dataclass(frozen=True)
class _Listing:
    media: frozenset[str]
    others: frozenset[str]


def _media_names(folder: Path) -> _Listing:
    """Names directly in ``folder``; hidden files are left out, sub-folders and other files are ``others``."""
    try:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
        media = frozenset(entry.name for entry in entries if _is_media(entry))
    except OSError as error:
        raise FuseproofError(
            f"{printable(folder)} cannot be listed: {os_reason(error)}.", next_step="check its permissions"
        ) from error
    return _Listing(media, frozenset(entry.name for entry in entries) - media)


def _is_media(entry: Path) -> bool:
    # A dangling link is no directory either, and must surface as an unreadable file.
    return entry.suffix.lower() in _MEDIA_SUFFIXES and not entry.is_dir()


def _compare_pair(name: str, a: Path, b: Path, data_range: float | None) -> Pair:
    try:
        comparison = compare_files(a, b, data_range=data_range)
    except FuseproofError as error:
        return Pair(name, a, b, None, error)
    return Pair(name, a, b, comparison)


def _folder_warnings(a: Path, b: Path, pairs: Sequence[Pair]) -> tuple[str, ...]:
    found = []
    if a.samefile(b):
        found.append("A and B are the same folder; a folder always equals itself")
    compared = [pair.comparison for pair in pairs if pair.comparison]
    for label, hashes in (
        ("A", Counter(comparison.a.pixels_sha256 for comparison in compared)),
        ("B", Counter(comparison.b.pixels_sha256 for comparison in compared)),
    ):
        if len(compared) > 1 and len(hashes) == 1:
            what = "pictures" if isinstance(compared[0], MediaComparison) else "videos"
            one = what.removesuffix("s")
            found.append(f"all {len(compared)} {what} of {label} are the same {one}: does it depend on its prompt?")
    return tuple(found)
