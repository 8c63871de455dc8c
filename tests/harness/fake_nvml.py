"""NVML as ``pynvml`` offers it, answering from a table: for tests here and in side processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

UUID = "GPU-aaaaaaaa-0000-1111-2222-333333333333"
H200: Mapping[str, Any] = {
    "sm": 1980,
    "memory": 3201,
    "power_mw": 350_500,
    "temperature": 41,
    "memory_temperature": 47,
    "utilization": 97,
    "used_bytes": 40 * 2**30,
    "reasons": 0,
    "pids": (),
}


class FakeNvmlError(Exception):
    """``pynvml.NVMLError``: ``value`` is NVML's own code."""

    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


@dataclass
class FakeNvml:
    """``answers`` of every card; a value that is an exception is raised. ``asked`` counts the calls by function."""

    answers: dict[str, Any] = field(default_factory=lambda: dict(H200))
    uuids: tuple[str, ...] = (UUID,)
    asked: dict[str, int] = field(default_factory=dict)
    starts: bool = True

    NVMLError = FakeNvmlError
    NVML_SUCCESS = 0
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_FI_DEV_MEMORY_TEMP = 82
    nvmlMemory_v2 = 2  # noqa: N815

    def _tell(self, function: str, key: str) -> Any:
        self.asked[function] = self.asked.get(function, 0) + 1
        value = self.answers[key]
        if isinstance(value, Exception):
            raise value
        return value() if isinstance(value, Callable) else value  # type: ignore[arg-type]

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.starts:
            raise FakeNvmlError(9)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.asked["shutdown"] = 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in self.uuids:
            raise FakeNvmlError(6)
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> Any:  # noqa: N802
        return self._tell("clock", "sm" if kind == self.NVML_CLOCK_SM else "memory")

    def nvmlDeviceGetPowerUsage(self, handle: str) -> Any:  # noqa: N802
        return self._tell("power", "power_mw")

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> Any:  # noqa: N802
        return self._tell("temperature", "temperature")

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[SimpleNamespace]:  # noqa: N802
        value = self._tell("fields", "memory_temperature")
        return [SimpleNamespace(nvmlReturn=3 if value is None else 0, value=SimpleNamespace(uiVal=value))]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=self._tell("utilization", "utilization"))

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=self._tell("memory v1" if version is None else "memory v2", "used_bytes"))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> Any:  # noqa: N802
        return self._tell("reasons", "reasons")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=2**30) for pid in self._tell("processes", "pids")]

    def nvmlSystemGetProcessName(self, pid: int) -> bytes:  # noqa: N802
        names: Mapping[int, bytes] = self.answers.get("names", {})
        if pid not in names:
            raise FakeNvmlError(6)
        return names[pid]


def side_program(body: str = "") -> tuple[str, ...]:
    """A command line for the sampler's side process on fake NVML; ``body`` may change ``nvml.answers`` first."""
    import sys

    root = Path(__file__).parents[2]
    script = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from fuseproof.harness.machine.gpu_sampling import main\n"
        "from tests.harness.fake_nvml import FakeNvml, FakeNvmlError\n"
        f"nvml = FakeNvml()\n{body}\nmain(module=nvml)"
    )
    return (sys.executable, "-c", script)
