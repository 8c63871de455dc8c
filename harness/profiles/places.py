"""Paths as they are typed: a name that no file can have (too long, a NUL byte) is one that does not exist."""

from __future__ import annotations

from pathlib import Path


def expanded(text: str) -> Path:
    """The path with ``~`` as the home folder that it stands for, and as it is where it stands for none."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def exists(path: Path) -> bool:
    """Whether anything is there."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a folder is there."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
