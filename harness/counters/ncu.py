"""Nsight Compute's command-line program: where it is, its calls, and in one sentence why it gave no counters."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from fuseproof.harness.counters.launches import LOCAL_LOADS, LOCAL_STORES, READ, WRITTEN

SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "LaunchStats", "Occupancy", "WarpStateStats")
"""They hold duration, share of peak, registers, warps, occupancy and stalls, whatever a card calls the metrics."""
METRICS = (READ, WRITTEN, LOCAL_LOADS, LOCAL_STORES)
"""Asked for besides."""
USUAL_PLACES = ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu")
NO_PERMISSION = "ERR_NVGPUCTRPERM"
LONGEST_REASON = 300


class NoCounters(Exception):  # noqa: N818 (no error of the program: there are simply no counters)
    """Why there are none, and what to do about it; each one sentence."""

    def __init__(self, reason: str, next_step: str) -> None:
        super().__init__(f"{reason} {next_step}")
        self.reason = reason
        self.next_step = next_step


def find_ncu(search_path: str | None = None, places: Sequence[str] = USUAL_PLACES) -> Path:
    """The program, on the search path or where NVIDIA's installers put it (the newest); :class:`NoCounters` if none."""
    found = shutil.which("ncu", path=search_path)
    if found is not None:
        return Path(found)
    for place in places:
        usual = [path for path in Path("/").glob(place.lstrip("/")) if os.access(path, os.X_OK)]
        if usual:
            return max(usual, key=_version_of)
    raise NoCounters(
        "Nsight Compute's program `ncu` was not found on this machine.",
        "Install Nsight Compute (it comes with the CUDA toolkit) or put `ncu` on the PATH.",
    )


def profile_command(ncu: Path, report: Path, program: Sequence[str]) -> list[str]:
    """Counts what ``program`` launches between cudaProfilerStart and -Stop, at the clocks that the card has."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    return [
        str(ncu), "--clock-control", "none", "--profile-from-start", "off", *sections, "--metrics", ",".join(METRICS),
        "--force-overwrite", "--export", str(report), *program,
    ]  # fmt: skip


def export_command(ncu: Path, report: Path) -> list[str]:
    """Prints a report as :func:`fuseproof.harness.counters.launches.parse_raw_page` reads it."""
    return [str(ncu), "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]


def version_of(ncu: Path, limit_s: float) -> str:
    """``2025.3.0.0``, or the program's own words where it says something else."""
    text = run(["--version"], limit_s, program=ncu)
    found = re.search(r"Version ([0-9][0-9.]*)", text)
    return found[1].rstrip(".") if found else (text.strip().splitlines() or [""])[-1]


def run(arguments: Sequence[str], limit_s: float, program: Path | None = None) -> str:
    """Everything that a call of ncu prints on stdout; :class:`NoCounters` where it fails or takes too long.

    The program runs in a session of its own, which is ended whole at the limit.
    """
    command = [*([str(program)] if program is not None else []), *arguments]
    environment: Mapping[str, str] = {**os.environ, "LC_ALL": "C"}  # numbers without a locale's own points
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
            text=True, errors="replace", env=environment, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise NoCounters(
            f"`{command[0]}` could not be started: {error.strerror or error}.",
            "Mend the installation of Nsight Compute.",
        ) from None
    try:
        printed, complaints = process.communicate(timeout=limit_s)
    except BaseException as error:
        _end(process)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise NoCounters(
            f"ncu had not finished after {limit_s:.0f} s and was ended.", "Count fewer calls: add --shape or --model."
        ) from None
    if process.returncode:
        raise refusal(printed + "\n" + complaints, process.returncode)
    return printed


def refusal(text: str, code: int) -> NoCounters:
    """Why a call of ncu failed, from what it printed."""
    if NO_PERMISSION in text:
        return NoCounters(
            f"This user may not read the card's counters ({NO_PERMISSION}).",
            "Run as root, in a container started with --cap-add=SYS_ADMIN, or load the NVIDIA driver with "
            "NVreg_RestrictProfilingToAdminUsers=0.",
        )
    errors = [line.removeprefix("==ERROR==").strip() for line in text.splitlines() if line.startswith("==ERROR==")]
    said = errors or [line.strip() for line in text.splitlines() if line.strip()][-1:] or ["nothing"]
    return NoCounters(
        f"ncu ended with {code} and said: {said[0][:LONGEST_REASON].rstrip('.')}.",
        "Run the same command without --ncu for times alone; `ncu --version` and `nvidia-smi` say what is installed.",
    )


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _version_of(path: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", str(path)))
