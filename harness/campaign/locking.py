"""One campaign per folder and per device: two at once would measure each other.

The locks are advisory file locks in a temporary folder of this user on this host, so every terminal finds the same
ones; the operating system frees them when their holder ends, however it ends. Beside each lock a small file names its
holder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from fuseproof.errors import FuseproofError, InvalidMeasurementError
from fuseproof.harness.machine.redaction import redact


def lock_folder() -> Path:
    """Where locks live, outside every campaign folder: made private to this user, and refused if it is not.

    A runtime or cache folder would do less: they differ between sessions of one user, or are shared between hosts.
    """
    folder = Path(tempfile.gettempdir()) / f"fuseproof-locks-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        owner = folder.lstat().st_uid
    except OSError as error:
        raise FuseproofError(f"The lock folder {folder} cannot be made: {error.strerror or error}.") from error
    if owner != os.getuid() or folder.is_symlink():
        raise FuseproofError(
            f"The lock folder {folder} belongs to somebody else.",
            next_step="Point TMPDIR at a folder of your own.",
        )
    return folder


def device_names(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """The devices a campaign may use, by UUID where they have one; the CPU when no GPU is visible.

    ``environment`` is what :func:`fuseproof.harness.machine.environment.describe` says.
    """
    uuids = [str(uuid) for uuid in environment.get("visible_gpu_uuids") or () if uuid]
    return tuple(sorted(uuids)) or ("cpu",)


@contextlib.contextmanager
def campaign_locks(directory: Path, devices: Sequence[str]) -> Iterator[None]:
    """Hold the locks of a campaign folder and of its devices.

    Raises :class:`InvalidMeasurementError` naming the holder when another campaign has one of them.
    """
    path = str(directory.resolve())
    folder_key = f"folder-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_lock(folder_key, f"the campaign folder {directory}", path))
        stack.enter_context(device_locks(devices, path))
        yield


@contextlib.contextmanager
def device_locks(devices: Sequence[str], campaign: str) -> Iterator[None]:
    """Hold the locks of devices of this machine; ``campaign`` is what the next one is told about their holder.

    Raises :class:`InvalidMeasurementError` naming the holder when another campaign has one of them.
    """
    with contextlib.ExitStack() as stack:
        for device in sorted(set(devices)):
            key = "device-" + re.sub(r"[^A-Za-z0-9-]", "_", device)
            stack.enter_context(_lock(key, f"the device {device}", campaign))
        yield


@contextlib.contextmanager
def _lock(key: str, what: str, campaign: str) -> Iterator[None]:
    folder = lock_folder()
    lock = filelock.FileLock(folder / f"{key}.lock")
    holder = folder / f"{key}.json"
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise InvalidMeasurementError(
            f"Another campaign is using {what}: {_holder_text(holder)}.",
            next_step="Wait until it has ended; two campaigns at once would measure each other.",
        ) from error
    except OSError as error:
        raise FuseproofError(
            f"The lock {lock.lock_file} cannot be taken: {error.strerror or error}.",
            next_step="Point TMPDIR at a folder that you can write.",
        ) from error
    try:
        with contextlib.suppress(OSError):  # the holder's name is a courtesy, the lock is what counts
            holder.write_text(json.dumps({"pid": os.getpid(), "campaign": redact(campaign)}), encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def _holder_text(holder: Path) -> str:
    try:
        values = json.loads(holder.read_text(encoding="utf-8"))
        return f"process {values['pid']}, {values['campaign']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "its holder is unknown"
