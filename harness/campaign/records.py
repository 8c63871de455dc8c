"""What is kept of one slot: the typed form of ``result.json``.

A record is complete whatever became of its slot. Numbers an arm does not give are None, never zero; ``state`` and
``reason_code`` say whether the slot may be used, ``reason`` says it in words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.gpu_records import SlotDevice, SlotGpu
from fuseproof.schedules.order import ArmLetter, Orientation, PlannedSlot, SlotKind

SLOT_SCHEMA = "fuseproof.slot/1"
DAMAGED_STEP = "Restore the file from a copy, or measure again in a new campaign."

SlotState = Literal["running", "done", "invalid", "interrupted", "superseded", "absent"]
"""``absent``: a place in an imported block of which no file was given."""


@dataclasses.dataclass(frozen=True)
class SlotTimes:
    """Seconds, summed over the slot's requests. Load, warm-up and compile time are outside ``client_s``."""

    worker_s: float | None = None
    denoise_s: float | None = None
    client_s: float | None = None
    save_s: float | None = None
    load_s: float | None = None
    warmup_s: float | None = None
    compile_s: float | None = None


@dataclasses.dataclass(frozen=True)
class SlotMemory:
    """Peaks in MiB. ``peak_rss_mib`` is the largest VmHWM of any process of the slot; the others are torch's.

    Of several ranks ``peak_*`` are the largest and ``*_sum_mib`` the sums (None with one rank).
    """

    peak_rss_mib: float | None = None
    peak_allocated_mib: float | None = None
    peak_reserved_mib: float | None = None
    load_peak_mib: float | None = None
    warmup_peak_mib: float | None = None
    allocated_sum_mib: float | None = None
    reserved_sum_mib: float | None = None


@dataclasses.dataclass(frozen=True)
class SlotOutput:
    """One file the arm wrote; ``path`` is relative to the slot's folder. Hashes are SHA-256, at three levels.

    Of a video ``pixels_sha256`` is of the frames that its file decodes to, ``frames_sha256`` of each raw frame before
    encoding, where the arm states them.
    """

    path: str
    file_sha256: str
    pixels_sha256: str | None = None
    raw_sha256: str | None = None
    latents_sha256: str | None = None
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    degenerate: str | None = None
    fps: float | None = None
    frames_sha256: tuple[str, ...] = ()

    @property
    def deepest_sha256(self) -> str:
        """The hash closest to what the model computed: raw array, else decoded pixels, else the file."""
        return self.raw_sha256 or self.pixels_sha256 or self.file_sha256


@dataclasses.dataclass(frozen=True)
class BusyProcess:
    """A process that is not ours and its mean use of the whole machine (1.0 is every core).

    ``cpu_cores`` is the same in cores' worth. Files of earlier versions have neither it nor ``pid``.
    """

    name: str
    cpu_share: float
    pid: int | None = None
    cpu_cores: float | None = None


@dataclasses.dataclass(frozen=True)
class Contention:
    """How much of the machine others used while the slot ran, as a share of all cores (0..1).

    ``steal_share`` is what a hypervisor took away. Shares and ``busy`` are None where the slot was too short to tell;
    earlier versions wrote ``busy: false`` there.
    """

    other_cpu_share: float | None = None
    busy: bool | None = None
    threshold: float | None = None
    worst: tuple[BusyProcess, ...] = ()
    steal_share: float | None = None


@dataclasses.dataclass(frozen=True)
class SlotRecord:
    """One slot, as ``result.json`` keeps it. Wall times are UTC texts, monotonic ones are seconds."""

    id: str
    cell: str
    block: int
    attempt: int
    position: int
    arm: ArmLetter
    label: str
    orientation: Orientation
    kind: SlotKind
    state: SlotState
    reason_code: str | None = None
    reason: str | None = None
    command: tuple[str, ...] = ()
    environment_overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    started: str | None = None
    ended: str | None = None
    started_monotonic_s: float | None = None
    ended_monotonic_s: float | None = None
    wall_s: float | None = None
    returncode: int | None = None
    pid: int | None = None
    times: SlotTimes = dataclasses.field(default_factory=SlotTimes)
    memory: SlotMemory = dataclasses.field(default_factory=SlotMemory)
    outputs: tuple[SlotOutput, ...] = ()
    contention: Contention = dataclasses.field(default_factory=Contention)
    gpu: SlotGpu | None = None
    device: SlotDevice | None = None
    """Of a campaign whose blocks run side by side; None where a slot saw every GPU that the campaign sees."""
    work: Mapping[str, Any] | None = None
    fastpaths: Mapping[str, Any] | None = None
    lineage: Mapping[str, Any] | None = None
    caches: Mapping[str, Mapping[str, Any]] | None = None
    """Of an arm with cache folders of its own: variable → ``folder``, ``files_before``, ``files_after``."""
    log_tail: tuple[str, ...] = ()

    @property
    def directory(self) -> str:
        """The slot's folder, relative to the campaign's."""
        return f"slots/{self.id}"

    @property
    def started_unix_s(self) -> float | None:
        """When the slot began, in seconds since 1970."""
        return None if self.started is None else datetime.fromisoformat(self.started).timestamp()

    @property
    def is_usable(self) -> bool:
        """Whether this slot's numbers may enter a block."""
        return self.state == "done" and self.kind == "timed"

    @property
    def fused_calls(self) -> int:
        """How many calls the arm's fast paths served fused, by its own counters; 0 where it reports none."""
        sites = (self.fastpaths or {}).get("sites")
        counts = [site.get("calls_fused") for site in sites.values()] if isinstance(sites, Mapping) else []
        return sum(count for count in counts if isinstance(count, int))

    @classmethod
    def planned(cls, slot: PlannedSlot, state: SlotState = "running", **facts: Any) -> SlotRecord:
        """The record of a planned slot, with the facts known so far."""
        return cls(**dataclasses.asdict(slot), id=slot.id, state=state, **facts)

    def with_facts(self, **facts: Any) -> SlotRecord:
        """A copy with some fields replaced."""
        return dataclasses.replace(self, **facts)

    def to_json(self) -> dict[str, Any]:
        """``result.json`` as JSON values."""
        return {"schema": SLOT_SCHEMA, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], source: str = "result.json") -> SlotRecord:
        """Read ``result.json`` back; an error names ``source`` and the key. Keys of later versions are ignored."""
        schema = values.get("schema")
        if schema != SLOT_SCHEMA:
            raise FuseproofError(
                f"{source}: schema is {schema!r}, this version reads {SLOT_SCHEMA!r}", next_step=DAMAGED_STEP
            )
        try:
            return _record_adapter().validate_python({key: value for key, value in values.items() if key != "schema"})
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(str(part) for part in problem["loc"])
            raise FuseproofError(f"{source}: key {key}: {problem['msg']}", next_step=DAMAGED_STEP) from error


def arms_of(runs: Iterable[SlotRecord]) -> tuple[ArmLetter, ...]:
    """The letters of the arms that these slots ran, in order."""
    return tuple(sorted({run.arm for run in runs}))


@cache
def _record_adapter() -> TypeAdapter[SlotRecord]:
    return TypeAdapter(SlotRecord)
