"""The GPUs while a slot runs: a side process samples them, and its samples are tagged and summed up afterwards.

Neither the slot nor this program talks to the driver: both would feel it, and a hanging driver would take them along.
A machine without GPUs or without NVML loses the numbers and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import fuseproof
from fuseproof.harness.campaign.gpu_records import UNTAGGED, CardConditions, PhaseConditions, SlotGpu
from fuseproof.harness.campaign.phases import SlotPhases
from fuseproof.harness.machine.gpu_sampling import INTERVAL_S
from fuseproof.harness.machine.nvml import HARDWARE_SLOWDOWN, reason_names

PROGRAM = (sys.executable, "-m", "fuseproof.harness.machine.gpu_sampling")
STOP_LIMIT_S = 5.0
"""It takes a tenth of a second; a slot that ends sooner than the sampler begins waits for its first sample."""
KILLED_LIMIT_S = 0.2
ACTIVE_PERCENT = 5.0
"""A card whose mean utilisation in some phase is above this worked."""
BUSY_PERCENT = 50.0
"""A sample counts as busy from this utilisation on; used where nobody told the phases."""
MEANS = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "utilization_percent")
PEAKS = {
    "temperature_c": "temperature_c",
    "memory_temperature_c": "memory_temperature_c",
    "memory_used_peak_mib": "memory_used_mib",
}


@dataclass(frozen=True)
class GpuRecording:
    """What the side process wrote: ``samples`` with ``monotonic_s`` and ``gpu``, and the cost it states of itself."""

    samples: tuple[dict[str, Any], ...] = ()
    reason: str | None = None
    cost: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cpu_share(self) -> float | None:
        """The sampler's processor time as a share of all usable cores' while it sampled."""
        used_s, wall_s, cores = (self.cost.get(key) for key in ("cpu_s", "wall_s", "cores"))
        return round(used_s / (wall_s * cores), 6) if used_s is not None and wall_s and cores else None


class GpuSampler:
    """One slot's side process. ``start`` before or just after the slot's own process, ``stop`` when that has ended."""

    def __init__(
        self, uuids: Sequence[str], program: Sequence[str] = PROGRAM, stop_limit_s: float = STOP_LIMIT_S
    ) -> None:
        self._uuids = tuple(uuids)
        self._program = tuple(program)
        self._stop_limit_s = stop_limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._out: IO[bytes] | None = None
        self._reason: str | None = None

    def start(self) -> None:
        """Start sampling; a process that cannot be started is a reason, not an error. Without cards nothing starts."""
        if not self._uuids:
            return
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 (read and closed in stop)
        try:
            self._process = start_sampling([*self._program, *self._uuids], self._out)
        except OSError as error:
            self._reason = f"the GPU sampler could not be started: {error.strerror or error}"

    def stop(self) -> GpuRecording | None:
        """End the side process, within a limit, and read what it wrote; None where there is no card."""
        if not self._uuids:
            return None
        if self._process is not None and not end_sampling(self._process, self._stop_limit_s):
            self._reason = f"the GPU sampler did not end within {self._stop_limit_s:g} s: the driver may be hanging"
        if self._out is None:
            return GpuRecording(reason=self._reason)
        with self._out as out:
            out.seek(0)
            recording = read_recording(out.read().decode("utf-8", errors="replace"))
        return GpuRecording(recording.samples, self._reason or recording.reason, recording.cost)


def start_sampling(argv: Sequence[str], out: IO[bytes]) -> subprocess.Popen[bytes]:
    """The side process, in a session of its own: a Ctrl-C is not for it, and it ends when its stdin does."""
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=out,
        stderr=subprocess.DEVNULL,
        cwd=Path(fuseproof.__file__).parent.parent,
        start_new_session=True,
    )


def end_sampling(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Close its stdin and wait; a process stuck in the driver ignores signals, so it is left behind after the limit."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_LIMIT_S)
        return False
    return True


def read_recording(text: str) -> GpuRecording:
    """The lines of the side process; a last line that was cut off is left out."""
    samples: list[dict[str, Any]] = []
    cost: dict[str, Any] = {}
    reason = None
    for line in text.splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if not isinstance(values, dict):
            continue
        if "monotonic_s" in values and "gpu" in values:
            samples.append(values)
        cost = values.get("cost", cost)
        reason = values.get("reason", reason)
    if not samples and reason is None:
        reason = "the GPU sampler wrote no sample"
    return GpuRecording(tuple(samples), reason, cost)


def slot_gpu(recording: GpuRecording, phases: SlotPhases) -> SlotGpu:
    """The recording summed up card by card and phase by phase, for ``result.json``."""
    gaps = _gaps_s(recording.samples)
    return SlotGpu(
        cards=conditions_of(_tagged(recording.samples, phases)),
        interval_s=round(statistics.median(gaps), 3) if gaps else None,
        longest_gap_s=round(max(gaps), 3) if gaps else None,
        cpu_share=recording.cpu_share,
        phase_source=phases.source,
        reason=recording.reason,
    )


def telemetry_lines(recording: GpuRecording, phases: SlotPhases, began_monotonic_s: float) -> Iterable[dict[str, Any]]:
    """Lines for ``telemetry.jsonl``: one that says how and when was sampled, then one a card and moment."""
    stretches = [
        {
            "phase": time.phase,
            "from_s": round(time.started_s - began_monotonic_s, 3),
            "to_s": round(time.ended_s - began_monotonic_s, 3),
        }
        for time in phases.times
    ]
    yield {
        "gpu_sampling": {
            "shortest_interval_s": INTERVAL_S,
            "reason": recording.reason,
            "cost": dict(recording.cost),
            "phase_source": phases.source,
            "phases": stretches,
        }
    }
    for sample in _tagged(recording.samples, phases):
        facts = {key: value for key, value in sample.items() if key != "monotonic_s"}
        yield {"t_s": round(float(sample["monotonic_s"]) - began_monotonic_s, 3), **facts}


def conditions_of(lines: Iterable[Mapping[str, Any]]) -> tuple[CardConditions, ...]:
    """The cards' conditions from lines of ``telemetry.jsonl``; lines that are not of a card are left out."""
    cards: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for line in lines:
        if "gpu" in line:
            cards.setdefault(str(line["gpu"]), {}).setdefault(str(line.get("phase", UNTAGGED)), []).append(line)
    return tuple(
        CardConditions(uuid, {phase: summarise(samples) for phase, samples in phases.items()})
        for uuid, phases in cards.items()
    )


def has_worked(card: CardConditions) -> bool:
    """Whether a card worked in some phase of its slot."""
    return any(_worked(phase) for phase in card.phases.values())


def working_cards(gpu: SlotGpu | None) -> list[CardConditions]:
    """The cards that worked during one slot, for what is decided when it ends; all, where none is known to have.

    What compares slots chooses the cards once for all of them: :mod:`fuseproof.harness.analysis.judged_cards`.
    """
    cards = gpu.cards if gpu is not None else ()
    return [card for card in cards if has_worked(card)] or list(cards)


def _worked(phase: PhaseConditions) -> bool:
    return phase.busy_samples > 0 or (phase.utilization_percent or 0.0) > ACTIVE_PERCENT


def hardware_slowdown(gpu: SlotGpu) -> str | None:
    """Which hardware slowdown the working cards met in the request, in words; None where they met none.

    Where nobody said when the request was, the whole slot counts.
    """
    wanted = set(reason_names(HARDWARE_SLOWDOWN))
    for card in working_cards(gpu):
        phases = [card.phases["request"]] if "request" in card.phases else list(card.phases.values())
        names = sorted({name for phase in phases for name in phase.event_counts if name in wanted})
        if names:
            hits = max(sum(phase.event_counts.get(name, 0) for phase in phases) for name in names)
            total = sum(phase.event_samples for phase in phases)
            return f"{card.uuid} was slowed down by its hardware ({', '.join(names)}) in {hits} of {total} samples"
    return None


def summarise(samples: Sequence[Mapping[str, Any]]) -> PhaseConditions:
    """Means, peaks and event counts of one card's samples in one phase."""
    busy = [sample for sample in samples if (_number(sample.get("utilization_percent")) or 0.0) >= BUSY_PERCENT]
    bits = [sample["event_reasons"] for sample in samples if isinstance(sample.get("event_reasons"), int)]
    counts: dict[str, int] = {}
    for value in bits:
        for name in reason_names(value):
            counts[name] = counts.get(name, 0) + 1
    return PhaseConditions(
        samples=len(samples),
        **{name: _mean(samples, name) for name in MEANS},
        **{name: max(_numbers(samples, key), default=None) for name, key in PEAKS.items()},
        event_samples=len(bits),
        event_counts=dict(sorted(counts.items())),
        busy_samples=len(busy),
        busy_sm_clock_mhz=_mean(busy, "sm_clock_mhz"),
    )


def _tagged(samples: Iterable[Mapping[str, Any]], phases: SlotPhases) -> Iterable[dict[str, Any]]:
    for sample in samples:
        yield {**sample, "phase": phases.at(float(sample["monotonic_s"]))}


def _gaps_s(samples: Iterable[Mapping[str, Any]]) -> list[float]:
    """The times between two samples of one card, of every card."""
    moments: dict[str, list[float]] = {}
    for sample in samples:
        moments.setdefault(str(sample["gpu"]), []).append(float(sample["monotonic_s"]))
    return [later - earlier for own in moments.values() for earlier, later in itertools.pairwise(own)]


def _mean(samples: Iterable[Mapping[str, Any]], key: str) -> float | None:
    values = _numbers(samples, key)
    return round(math.fsum(values) / len(values), 3) if values else None


def _numbers(samples: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    values = (_number(sample.get(key)) for sample in samples)
    return [value for value in values if value is not None]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
