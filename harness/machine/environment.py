"""One description of the machine, the software and the settings under a measurement, without torch.

Fields that cannot be known here are None, with a reason beside the two that matter most (GPUs and the checkout).
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fuseproof
from fuseproof.harness.machine.gpus import GpuSurvey, survey_gpus, visible_gpus
from fuseproof.harness.machine.host import Host, read_host
from fuseproof.harness.machine.libraries import recorded_versions, torch_build
from fuseproof.harness.machine.redaction import allowed_variables, redact, redact_mapping

__all__ = ["Checkout", "describe", "read_checkout", "redact", "redact_mapping"]

GIT_TIME_LIMIT_S = 10.0


@dataclass(frozen=True)
class Checkout:
    """The git state of the source tree that is running; all None when it runs from an installed package."""

    commit: str | None = None
    is_dirty: bool | None = None
    diff_sha256: str | None = None
    reason: str | None = None


def describe(
    *, host: Host | None = None, gpus: GpuSurvey | None = None, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Describe this process's surroundings as strict JSON values, redacted; what is not given is looked up.

    Usually takes some ten milliseconds; a hanging ``nvidia-smi`` adds its time limit.
    """
    source = dict(os.environ) if variables is None else dict(variables)
    host = host or read_host()
    gpus = gpus or survey_gpus()
    visible, hidden_reason = visible_gpus(gpus.gpus, source.get("CUDA_VISIBLE_DEVICES"))
    build = torch_build()
    return redact_mapping(
        {
            "fuseproof": {"version": fuseproof.__version__, **asdict(read_checkout())},
            "python": {
                "version": platform.python_version(),
                "implementation": platform.python_implementation(),
                "executable": sys.executable,
                "hash_seed": source.get("PYTHONHASHSEED"),
            },
            "operating_system": asdict(host.operating_system),
            "processor": asdict(host.processor),
            "memory": asdict(host.memory),
            "load_average": host.load_average,
            "timer_tick_s": host.timer_tick_s,
            "libraries": recorded_versions(),
            "torch_build": asdict(build) if build else None,
            "gpus": [asdict(gpu) for gpu in gpus.gpus],
            "gpus_reason": gpus.reason,
            "visible_gpu_uuids": [gpu.uuid for gpu in visible],
            "visible_gpus_reason": hidden_reason,
            "cuda_driver_version": gpus.cuda_version,
            "environment_variables": allowed_variables(source),
        }
    )


def read_checkout(root: Path | None = None) -> Checkout:
    """Commit and local changes of fuseproof's own checkout; ``diff_sha256`` is over ``git diff HEAD`` when dirty.

    Only a ``.git`` beside our own ``pyproject.toml`` counts: an installed package inside somebody else's repository
    must not borrow that repository's commit.
    """
    folder = root or Path(fuseproof.__file__).resolve().parent.parent
    if not (folder / ".git").exists() or not (folder / "pyproject.toml").is_file():
        return Checkout(reason="not run from a git checkout")
    try:
        commit = _git(folder, "rev-parse", "HEAD").strip()
        changes = _git(folder, "status", "--porcelain")
        difference = _git(folder, "diff", "HEAD") if changes else ""
    except (OSError, subprocess.SubprocessError) as error:
        return Checkout(reason=f"git could not tell: {_first_line(error)}")
    return Checkout(commit, bool(changes), _sha256(difference) if difference else None)


def _git(folder: Path, *arguments: str) -> str:
    """Run git without touching the index (no optional locks), so that reading never disturbs the user's own git."""
    result = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=GIT_TIME_LIMIT_S,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    return result.stdout


def _first_line(error: Exception) -> str:
    told = getattr(error, "stderr", None) or str(error)
    lines = [line.strip() for line in str(told).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _sha256(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode("utf-8")).hexdigest()
