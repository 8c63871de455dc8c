"""One hash for a whole folder: what is in it, whatever its timestamps and wherever it lies."""

from __future__ import annotations

import hashlib
from pathlib import Path


def folder_sha256(folder: Path) -> str:
    """SHA-256 over every file of ``folder`` in the order of relative POSIX paths.

    Each file adds its path in UTF-8, a zero byte, its length as 8 little-endian bytes, and its bytes, so that no two
    different folders feed the same stream. Links are followed; empty folders do not count.
    """
    digest = hashlib.sha256()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(files):
        contents = files[name].read_bytes()
        digest.update(name.encode() + b"\0" + len(contents).to_bytes(8, "little"))
        digest.update(contents)
    return digest.hexdigest()
