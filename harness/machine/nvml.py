"""What NVML says of a card at this moment: clocks, power, temperature, utilisation, memory, event reasons. Read-only.

The calls go through ``nvidia-ml-py`` (the module ``pynvml``). What a card or driver does not tell is None; a machine
without driver or module is one sentence, never a crash. A call into a hanging driver cannot be timed out from within,
so measurements are made by a side process: :mod:`fuseproof.harness.machine.gpu_sampling`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

BYTES_PER_MIB = 2**20
MPS_SERVER = "nvidia-cuda-mps-server"
"""The process that holds the context of every client of CUDA's multi-process service."""

EVENT_REASONS: Mapping[int, str] = {
    0x1: "idle",
    0x2: "applications clocks",
    0x4: "SW power cap",
    0x8: "HW slowdown",
    0x10: "sync boost",
    0x20: "SW thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake",
    0x100: "display clock",
}
"""The bits of NVML's clock event reasons. 0x1 and 0x2 are normal; newer drivers may set others."""
SW_POWER_CAP = 0x4
SW_THERMAL = 0x20
HARDWARE_SLOWDOWN = 0x8 | 0x40 | 0x80
"""Any of these spoils what is measured meanwhile."""


class NvmlError(Exception):
    """NVML cannot be used; the text says why."""


@dataclass(frozen=True)
class CardSample:
    """One card at one moment. ``memory_used_mib`` is the whole card's, CUDA contexts and other processes included."""

    uuid: str
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    utilization_percent: float | None = None
    memory_used_mib: float | None = None
    event_reasons: int | None = None


@dataclass(frozen=True)
class ComputeUse:
    """A process with a compute context. Inside a container ``pid`` is the host's, and its name is often not told."""

    pid: int
    memory_used_mib: float | None
    name: str | None = None

    @property
    def is_mps_server(self) -> bool:
        """Whether it is CUDA's own server, which stays on the card after its clients have gone."""
        return self.name is not None and MPS_SERVER in self.name


def reason_names(bits: int) -> tuple[str, ...]:
    """The set bits in words; bits without a name as hexadecimal numbers."""
    named = [name for bit, name in EVENT_REASONS.items() if bits & bit]
    rest = bits & ~sum(EVENT_REASONS)
    return (*named, *(hex(1 << place) for place in range(rest.bit_length()) if rest >> place & 1))


class Nvml:
    """An open NVML library. ``module`` is ``pynvml``, or in tests an object with the functions used here.

    A question that a card answers with "not supported" is not asked again: it would cost time for nothing.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._handles: dict[str, Any] = {}
        self._unsupported: set[tuple[str, str]] = set()

    @classmethod
    def open(cls, module: Any = None) -> Nvml:
        """Load and start the library. Raises :class:`NvmlError` with the reason where there is none."""
        if module is None:
            try:
                module = importlib.import_module("pynvml")
            except ImportError as error:
                raise NvmlError("nvidia-ml-py is not installed") from error
        try:
            module.nvmlInit()
        except module.NVMLError as error:
            raise NvmlError(f"NVML could not be started: {error}") from error
        return cls(module)

    def close(self) -> None:
        """Let go of the library."""
        self._answer("", "shutdown", self._module.nvmlShutdown)

    def find(self, uuid: str) -> None:
        """Look a card up by its UUID. Raises :class:`NvmlError` when NVML knows none of that name."""
        try:
            self._handles[uuid] = self._module.nvmlDeviceGetHandleByUUID(uuid)
        except self._module.NVMLError as error:
            raise NvmlError(f"NVML does not find {uuid}: {error}") from error

    def sample(self, uuid: str) -> CardSample:
        """Everything of one card now; the card must have been found before."""
        nvml, handle = self._module, self._handles[uuid]

        def ask(name: str, read: Callable[[], Any]) -> Any:
            return self._answer(uuid, name, read)

        utilization = ask("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        return CardSample(
            uuid=uuid,
            sm_clock_mhz=_number(ask("sm", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            memory_clock_mhz=_number(ask("mem", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
            power_w=_watts(ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))),
            temperature_c=_number(
                ask("temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            memory_temperature_c=_number(ask("memory temperature", lambda: _memory_temperature(nvml, handle))),
            utilization_percent=_number(utilization),
            memory_used_mib=self.memory_used_mib(uuid),
            event_reasons=_bits(ask("reasons", lambda: _event_reasons(nvml, handle))),
        )

    def memory_used_mib(self, uuid: str) -> float | None:
        """What the card's processes and the driver's contexts hold, as nvidia-smi counts it (MiB)."""
        nvml, handle = self._module, self._handles[uuid]
        used = self._answer(uuid, "memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).used)
        if used is None:  # drivers before 510 have the first version alone, which counts reserved memory as used
            used = self._answer(uuid, "memory v1", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
        number = _number(used)
        return None if number is None else round(number / BYTES_PER_MIB, 2)

    def processes(self, uuid: str) -> tuple[ComputeUse, ...] | None:
        """Processes with a compute context on the card; None where NVML does not say."""
        nvml, handle = self._module, self._handles[uuid]
        found = self._answer(uuid, "processes", lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        if found is None:
            return None
        return tuple(
            ComputeUse(int(one.pid), _mib(getattr(one, "usedGpuMemory", None)), self._name(int(one.pid)))
            for one in found
        )

    def _name(self, pid: int) -> str | None:
        """A process's name without its folder; None where the driver does not tell it."""
        name = self._answer("", f"name of {pid}", lambda: self._module.nvmlSystemGetProcessName(pid))
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
        return text.rpartition("/")[2] or None if isinstance(text, str) else None

    def _answer(self, uuid: str, name: str, read: Callable[[], Any]) -> Any:
        if (uuid, name) in self._unsupported:
            return None
        try:
            return read()
        except self._module.NVMLError as error:
            if getattr(error, "value", None) in self._lasting():
                self._unsupported.add((uuid, name))
        except AttributeError:  # an older module without this function
            self._unsupported.add((uuid, name))
        return None

    def _lasting(self) -> tuple[object, object]:
        module = self._module
        return (
            getattr(module, "NVML_ERROR_NOT_SUPPORTED", object()),
            getattr(module, "NVML_ERROR_FUNCTION_NOT_FOUND", object()),
        )


def _event_reasons(nvml: Any, handle: Any) -> Any:
    """The event reasons; drivers and modules before 535 call them throttle reasons."""
    read = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    if read is not None:
        try:
            return read(handle)
        except nvml.NVMLError as error:
            if getattr(error, "value", None) != getattr(nvml, "NVML_ERROR_FUNCTION_NOT_FOUND", object()):
                raise
    return nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)


def _memory_temperature(nvml: Any, handle: Any) -> Any:
    value = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_MEMORY_TEMP])[0]
    return value.value.uiVal if value.nvmlReturn == nvml.NVML_SUCCESS else None


def _number(value: Any) -> float | None:
    """None for what is no finite number, as NVML's "N/A"."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _watts(milliwatts: Any) -> float | None:
    number = _number(milliwatts)
    return None if number is None else number / 1e3


def _bits(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _mib(used_bytes: Any) -> float | None:
    number = _number(used_bytes)
    return None if number is None else round(number / BYTES_PER_MIB, 2)
