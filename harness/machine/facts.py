"""The facts that the machine checks judge, and the form of their findings."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fuseproof.harness.machine.activity import Activity, sample_activity
from fuseproof.harness.machine.gpus import GpuSurvey, survey_gpus
from fuseproof.harness.machine.host import BYTES_PER_MIB, Host, read_host
from fuseproof.harness.machine.libraries import Library, TorchBuild, required_libraries, torch_build

CACHE_VARIABLE = "FUSEPROOF_CACHE_DIR"

Level = Literal["ok", "warn", "problem"]


@dataclass(frozen=True)
class Finding:
    """``problem``: numbers measured here cannot be trusted, or something cannot run; ``warn``: they may be noisy.

    ``next_step`` is one line that says what to do; only an ``ok`` finding has none.
    """

    level: Level
    topic: str
    message: str
    next_step: str | None = None


@dataclass(frozen=True)
class Folder:
    """A folder that a measurement writes to; ``free_mib`` is None where it cannot be told."""

    role: str
    path: str
    free_mib: int | None
    is_writable: bool


@dataclass(frozen=True)
class MachineFacts:
    """Everything that the checks look at. ``own_process_ids``: this process, its ancestors and its children."""

    python_version: tuple[int, int]
    host: Host
    activity: Activity
    gpus: GpuSurvey
    libraries: tuple[Library, ...]
    torch: TorchBuild | None
    variables: Mapping[str, str]
    folders: tuple[Folder, ...]
    own_process_ids: frozenset[int]


def gather_facts(cache_folder: Path | None = None) -> MachineFacts:
    """Look at this machine for about half a second. Nothing is written or changed."""
    major, minor, _ = platform.python_version_tuple()
    places = {"current folder": Path.cwd(), "cache folder": cache_folder or _default_cache_folder()}
    return MachineFacts(
        python_version=(int(major), int(minor)),
        host=read_host(),
        activity=sample_activity(),
        gpus=survey_gpus(),
        libraries=required_libraries(),
        torch=torch_build(),
        variables=dict(os.environ),
        folders=tuple(read_folder(role, path) for role, path in places.items() if path is not None),
        own_process_ids=_own_process_ids(),
    )


def read_folder(role: str, path: Path) -> Folder:
    """Space and write access of ``path``, or of the nearest existing folder above it."""
    existing = next((folder for folder in (path, *path.parents) if folder.is_dir()), Path("/"))
    try:
        free_mib: int | None = shutil.disk_usage(existing).free // BYTES_PER_MIB
    except OSError:
        free_mib = None
    return Folder(role, str(path), free_mib, os.access(existing, os.W_OK | os.X_OK))


def _default_cache_folder() -> Path | None:
    """Where the embedded model is built; None on a machine without platformdirs, which the libraries' check tells."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    try:
        import platformdirs
    except ModuleNotFoundError:
        return None
    return Path(platformdirs.user_cache_dir("fuseproof"))


def _own_process_ids() -> frozenset[int]:
    import psutil

    me = psutil.Process()
    return frozenset(process.pid for process in (me, *me.parents(), *me.children(recursive=True)))
