"""NVIDIA GPUs as ``nvidia-smi`` tells of them: without torch, within a time limit, and read-only.

A value that a card or driver does not give (``[N/A]``, ``[Not Supported]``) is None. A missing, failing or hanging
``nvidia-smi`` is an empty survey with a reason, never an exception.
"""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

TIME_LIMIT_S = 10.0

# nvidia-smi's field, our attribute. Every driver that runs a current CUDA knows the core fields; the newer ones are
# left out as a whole where a driver refuses one of them.
_CORE_FIELDS = (
    ("index", "index"),
    ("uuid", "uuid"),
    ("name", "name"),
    ("driver_version", "driver_version"),
    ("pci.bus_id", "pci_bus_id"),
    ("memory.total", "memory_total_mib"),
    ("memory.used", "memory_used_mib"),
    ("utilization.gpu", "utilization_percent"),
    ("temperature.gpu", "temperature_c"),
    ("pstate", "performance_state"),
    ("persistence_mode", "persistence_mode"),
    ("compute_mode", "compute_mode"),
    ("power.limit", "power_limit_w"),
    ("power.default_limit", "power_default_limit_w"),
)
_NEWER_FIELDS = (
    ("compute_cap", "compute_capability"),
    ("vbios_version", "vbios_version"),
    ("mig.mode.current", "mig_mode"),
    ("ecc.mode.current", "ecc_mode"),
    ("pcie.link.gen.max", "pcie_generation_max"),
    ("pcie.link.width.current", "pcie_width"),
    ("pcie.link.width.max", "pcie_width_max"),
    ("clocks.applications.graphics", "application_clock_mhz"),
    ("clocks.max.sm", "sm_clock_max_mhz"),
)
_ALL_FIELDS = _CORE_FIELDS + _NEWER_FIELDS
_NUMBER_ENDINGS = ("_mib", "_w", "_c", "_mhz", "_percent", "_width", "_max")
_PROCESS_FIELDS = ("gpu_uuid", "pid", "process_name", "used_memory")


@dataclass(frozen=True)
class Gpu:
    """One card. Memory in MiB (2**20 bytes), power in watts, clocks in MHz, temperature in degrees Celsius."""

    index: int
    uuid: str | None
    name: str | None
    driver_version: str | None
    pci_bus_id: str | None
    memory_total_mib: float | None
    memory_used_mib: float | None
    utilization_percent: float | None
    temperature_c: float | None
    performance_state: str | None
    persistence_mode: str | None
    compute_mode: str | None
    power_limit_w: float | None
    power_default_limit_w: float | None
    compute_capability: str | None = None
    vbios_version: str | None = None
    mig_mode: str | None = None
    ecc_mode: str | None = None
    pcie_generation_max: float | None = None
    pcie_width: float | None = None
    pcie_width_max: float | None = None
    application_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    mig_devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComputeProcess:
    """A process that holds a compute context; inside a container the process id is the host's."""

    gpu_uuid: str
    process_id: int
    name: str | None
    memory_used_mib: float | None


@dataclass(frozen=True)
class GpuSurvey:
    """``reason`` says why ``gpus`` is empty or what could not be read; ``cuda_version`` is the driver's newest."""

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[ComputeProcess, ...] = ()
    cuda_version: str | None = None
    reason: str | None = None


class _SmiError(Exception):
    """nvidia-smi gave no answer; the text says why."""


def survey_gpus(time_limit_s: float = TIME_LIMIT_S, program: str = "nvidia-smi") -> GpuSurvey:
    """Ask ``nvidia-smi`` about every card and every compute process; each call may take ``time_limit_s``."""
    path = shutil.which(program)
    if path is None:
        return GpuSurvey(reason=f"{program} was not found, so no NVIDIA driver is installed")
    try:
        gpus = _query_gpus(path, time_limit_s)
    except _SmiError as error:
        return GpuSurvey(reason=str(error))
    try:
        processes = parse_processes(_ask(path, time_limit_s, *_query("compute-apps", _PROCESS_FIELDS)))
        gpus = _with_mig_devices(gpus, path, time_limit_s)
        version = _cuda_version(path, time_limit_s)
    except _SmiError as error:
        return GpuSurvey(gpus=gpus, reason=str(error))
    return GpuSurvey(gpus, processes, version, reason=None if gpus else f"{program} lists no GPU")


def _query(what: str, fields: Iterable[str]) -> tuple[str, str]:
    return f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"


def _query_gpus(path: str, time_limit_s: float) -> tuple[Gpu, ...]:
    """Ask for all fields; a driver that does not know one of the newer fields is asked for the core ones alone."""
    try:
        return parse_gpus(_ask(path, time_limit_s, *_query("gpu", (field for field, _ in _ALL_FIELDS))))
    except _SmiError as error:
        if "not a valid field" not in str(error):
            raise
    return parse_gpus(_ask(path, time_limit_s, *_query("gpu", (field for field, _ in _CORE_FIELDS))))


def _with_mig_devices(gpus: tuple[Gpu, ...], path: str, time_limit_s: float) -> tuple[Gpu, ...]:
    if not any(gpu.mig_mode == "Enabled" for gpu in gpus):
        return gpus
    devices = parse_mig_devices(_ask(path, time_limit_s, "-L"))
    return tuple(replace(gpu, mig_devices=devices.get(gpu.uuid or "", ())) for gpu in gpus)


def _cuda_version(path: str, time_limit_s: float) -> str | None:
    """The newest CUDA that the driver serves; drivers before 535 have no ``--version``."""
    try:
        found = re.search(r"CUDA Version\s*:\s*([\d.]+)", _ask(path, time_limit_s, "--version"))
    except _SmiError:
        return None
    return found.group(1) if found else None


def _ask(path: str, time_limit_s: float, *arguments: str) -> str:
    """Run nvidia-smi once. A process stuck in the driver ignores signals, so it is left behind, never waited for."""
    try:
        process = subprocess.Popen(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise _SmiError(f"nvidia-smi could not be started: {error.strerror or error}") from error
    try:
        text, _ = process.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired as error:
        process.kill()
        if process.stdout:
            process.stdout.close()
        raise _SmiError(f"nvidia-smi did not answer within {time_limit_s:g} s: the driver may be hanging") from error
    if process.returncode != 0:
        raise _SmiError(f"nvidia-smi failed with exit code {process.returncode}: {' '.join(text.split()) or 'no text'}")
    return text


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Cards from ``nvidia-smi --query-gpu`` in csv without header and units, with the core fields or with all."""
    gpus = []
    for row in _rows(text):
        fields = _ALL_FIELDS if len(row) == len(_ALL_FIELDS) else _CORE_FIELDS
        if len(row) != len(fields) or not row[0].isdigit():
            raise _SmiError(f"nvidia-smi answered something unexpected: {text.strip()[:120]!r}")
        values = {attribute: _value(text, attribute) for (_, attribute), text in zip(fields, row, strict=True)}
        gpus.append(Gpu(**{**values, "index": int(row[0])}))
    return tuple(gpus)


def parse_processes(text: str) -> tuple[ComputeProcess, ...]:
    """Processes from ``nvidia-smi --query-compute-apps``; rows without a process id are skipped."""
    rows = [row for row in _rows(text) if len(row) == len(_PROCESS_FIELDS) and row[1].isdigit()]
    return tuple(ComputeProcess(row[0], int(row[1]), _text_or_none(row[2]), _number(row[3])) for row in rows)


def parse_mig_devices(text: str) -> dict[str, tuple[str, ...]]:
    """The UUIDs of MIG devices by the UUID of their card, from ``nvidia-smi -L``."""
    devices: dict[str, tuple[str, ...]] = {}
    card = ""
    for line in text.splitlines():
        found = re.search(r"UUID:\s*((?:GPU|MIG)-[^)\s]+)", line)
        if found and found.group(1).startswith("GPU-"):
            card = found.group(1)
        elif found:
            devices[card] = (*devices.get(card, ()), found.group(1))
    return devices


def visible_gpus(gpus: tuple[Gpu, ...], cuda_visible_devices: str | None) -> tuple[tuple[Gpu, ...], str | None]:
    """The cards that CUDA shows to a process with this ``CUDA_VISIBLE_DEVICES``, and why some or all are hidden.

    CUDA's own rule: unset shows all; otherwise entries are taken in order (an index, the start of a UUID, or a MIG
    device) until the first one that names nothing.
    """
    if cuda_visible_devices is None:
        return gpus, None
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in cuda_visible_devices.split(",")):
        gpu = _named_gpu(gpus, entry)
        if gpu is None:
            break
        if gpu not in chosen:
            chosen.append(gpu)
    hidden = len(gpus) - len(chosen)
    reason = f"CUDA_VISIBLE_DEVICES={cuda_visible_devices!r} hides {hidden} of {len(gpus)} GPUs" if hidden else None
    return tuple(chosen), reason


def _named_gpu(gpus: tuple[Gpu, ...], entry: str) -> Gpu | None:
    if entry.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    if entry.startswith("MIG-"):
        return next((gpu for gpu in gpus if any(device.startswith(entry) for device in gpu.mig_devices)), None)
    if entry.startswith("GPU-"):
        matches = [gpu for gpu in gpus if (gpu.uuid or "").startswith(entry)]
        return matches[0] if len(matches) == 1 else None
    return None


def _rows(text: str) -> list[list[str]]:
    return [[value.strip() for value in row] for row in csv.reader(io.StringIO(text), skipinitialspace=True) if row]


def _text_or_none(value: str) -> str | None:
    """None for what nvidia-smi prints in place of a value: ``[N/A]``, ``[Not Supported]``, ``[Unknown Error]``."""
    is_absent = not value or value.upper() == "N/A" or (value.startswith("[") and value.endswith("]"))
    return None if is_absent else value


def _value(text: str, attribute: str) -> Any:
    return _number(text) if attribute.endswith(_NUMBER_ENDINGS) else _text_or_none(text)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
