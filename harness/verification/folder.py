"""What lies in a folder and is no evidence: links and everything else that is no regular file.

Nothing of a folder is read before this has been looked at: a pipe would never end, and a link would lead out of the
folder, to files that are nobody's evidence.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.harness.verification.findings import Finding


def strange_entries(directory: Path) -> Iterator[Finding]:
    """Links, pipes, sockets and devices below ``directory``, by name; links are named and not followed.

    Raises :class:`FuseproofError` naming a folder that cannot be listed: what lies in it could not be checked.
    """
    for folder, folders, names in os.walk(directory, onerror=_refuse):
        folders.sort()
        for name in sorted([*folders, *names]):
            path = Path(folder) / name
            what = _what(path)
            if what is not None:
                yield Finding(path.relative_to(directory).as_posix(), f"is {what}, and evidence is kept in files")


def _what(path: Path) -> str | None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return "gone while it was looked at"
    if stat.S_ISLNK(mode):
        return "a link"
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "no regular file"


def _refuse(error: OSError) -> None:
    raise FuseproofError(
        f"{error.filename} cannot be read: {error.strerror or error}.", next_step="Check its permissions."
    ) from error
