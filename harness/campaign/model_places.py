"""Where a cache root may lie, and removing files below it without ever leaving it.

Two folders are the same when they are one on the disk: names say nothing where folders are links, bind mounts or of a
file system without case. Files are removed through open folders, link by link refused, so that nothing that is put in
their place meanwhile can lead a removal elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fuseproof.errors import UsageError
from fuseproof.harness.campaign.folder import CAMPAIGN_FILE
from fuseproof.harness.campaign.model_files import CACHE_VARIABLES, hub_cache
from fuseproof.harness.machine.redaction import redact

REPOSITORY_PREFIXES = ("models--", "datasets--", "spaces--")
STATE_FOLDER = ".fuseproof"
OWN_ROOT = "Point --model-cache-root at a folder of its own, beside the campaign's."
MOUNTS = Path("/proc/self/mountinfo")
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_OCTAL = re.compile(r"\\([0-7]{3})")


def is_same_or_inside(path: Path, folder: Path) -> bool:
    """Whether ``path`` is ``folder`` or lies in it, by what is on the disk as well as by name; both may be missing."""
    path, folder = path.resolve(), folder.resolve()
    return path.is_relative_to(folder) or any(_is_same(place, folder) for place in (path, *path.parents))


def shared_cache(root: Path, variables: Mapping[str, str]) -> Path | None:
    """The hub's own cache where ``root`` is that folder, holds it or lies in it; with and without our variables."""
    for source in (variables, {name: value for name, value in variables.items() if name not in CACHE_VARIABLES}):
        shared = hub_cache(source)
        if is_same_or_inside(root, shared) or is_same_or_inside(shared, root):
            return shared.resolve()
    return None


def refuse_shared_root(root: Path, variables: Mapping[str, str]) -> None:
    """Raise :class:`UsageError` where cleaning ``root`` could touch a cache that others use: the hub's own.

    The root may be neither that folder, nor a link to it, nor a folder around or inside it.
    """
    shared = shared_cache(root, variables)
    if shared is not None:
        raise UsageError(
            f"--cleanup-model-cache would remove files from {redact(str(root))}, which is, holds or lies in the "
            f"shared hub cache {redact(str(shared))}.",
            next_step="Point --model-cache-root at a folder of its own, or leave --cleanup-model-cache out.",
        )


def refuse_entangled_root(root: Path, campaign: Path) -> None:
    """Raise :class:`UsageError` where a cache root and evidence would lie in one another. Nothing is written.

    A root is no place inside the campaign's folder, any other campaign's, or a repository's of another cache; a
    campaign is no place inside what a root keeps.
    """
    shown = redact(str(root))
    if is_same_or_inside(root, campaign):
        raise UsageError(
            f"--model-cache-root {shown} lies in the campaign's own folder {redact(str(campaign))}.", next_step=OWN_ROOT
        )
    for place in (root.resolve(), *root.resolve().parents):
        if (place / CAMPAIGN_FILE).is_file():
            raise UsageError(
                f"--model-cache-root {shown} lies in {redact(str(place))}, the folder of another campaign.",
                next_step=OWN_ROOT,
            )
        if is_kept_name(place.name):
            raise UsageError(
                f"--model-cache-root {shown} lies in {redact(str(place))}, which belongs to another cache.",
                next_step=OWN_ROOT,
            )
    if any(is_same_or_inside(campaign, place) for place in _kept_folders(root)) or _is_kept_below(campaign, root):
        raise UsageError(
            f"The campaign folder {redact(str(campaign))} lies in what the cache {shown} keeps, and a cleaning of the "
            "cache could remove it.",
            next_step="Choose another folder with --output.",
        )


def is_kept_name(name: str) -> bool:
    """Whether a folder of this name in a root is a repository's or our own; without case, as some disks have it."""
    folded = name.casefold()
    return folded.startswith(REPOSITORY_PREFIXES) or folded in (STATE_FOLDER, ".locks")


def reason_to_keep(root: Path, folder: str, campaigns: Sequence[Path]) -> str | None:
    """Why nothing below the repository folder ``folder`` of ``root`` may be removed; None where nothing forbids it."""
    place = root / folder
    try:
        mode = place.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):
        return f"{redact(str(place))} is a link, and what it leads to is not this cache's"
    if not stat.S_ISDIR(mode):
        return f"{redact(str(place))} is no folder"
    mounted = next((mount for mount in _mount_points() if mount == place or mount.is_relative_to(place)), None)
    if mounted is not None:
        return f"another folder is mounted at {redact(str(mounted))}"
    for inside, folders, files in os.walk(place):
        here = Path(inside)
        if CAMPAIGN_FILE in files and not (here / CAMPAIGN_FILE).is_symlink():
            return f"a campaign lies in {redact(inside)}"
        if any(_is_same(here / name, campaign) for name in (".", *folders) for campaign in campaigns):
            return f"the campaign itself lies in {redact(inside)}"
    return None


def remove_files(root: Path, names: Sequence[str]) -> None:
    """Remove files and links, named relative to ``root``, that are still reached without a link; others are left."""
    for name in names:
        with _folder_of(root, name) as folder:
            if folder is not None:
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(Path(name).name, dir_fd=folder)


def remove_empty_folders(root: Path, names: Sequence[str]) -> None:
    """Remove those folders, named relative to ``root``, that hold nothing, the deepest first."""
    for name in sorted(set(names), key=lambda name: (-name.count("/"), name)):
        with _folder_of(root, name) as folder, contextlib.suppress(OSError):
            if folder is not None:
                os.rmdir(Path(name).name, dir_fd=folder)


@contextlib.contextmanager
def _folder_of(root: Path, name: str) -> Iterator[int | None]:
    """The open folder that ``name`` lies in; None where a folder on the way is gone, or is a link by now."""
    opened: list[int] = []
    try:
        try:
            opened.append(os.open(root, _OPEN_FOLDER))
            for part in Path(name).parts[:-1]:
                opened.append(os.open(part, _OPEN_FOLDER, dir_fd=opened[-1]))
        except (FileNotFoundError, NotADirectoryError):
            yield None
        except OSError as error:
            if error.errno != errno.ELOOP:  # a link
                raise
            yield None
        else:
            yield opened[-1]
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _kept_folders(root: Path) -> list[Path]:
    """What lies in a root and is a repository's or our own, links included."""
    try:
        return [path for path in root.iterdir() if is_kept_name(path.name)]
    except OSError:
        return []


def _is_kept_below(campaign: Path, root: Path) -> bool:
    """Whether the campaign would lie in a repository's folder that is not there yet."""
    path = campaign.resolve()
    below: list[str] = []
    for place in (path, *path.parents):
        if place == root.resolve() or _is_same(place, root):
            return bool(below) and is_kept_name(below[-1])
        below.append(place.name)
    return False


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _mount_points() -> list[Path]:
    """Every place where something is mounted; empty where the system does not say."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    fields = [line.split(" ") for line in lines]
    return [Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), field[4])) for field in fields if len(field) > 4]
