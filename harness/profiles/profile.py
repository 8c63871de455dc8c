"""One kernel profile (``fuseproof.profile/1``) as frozen values. Times are microseconds unless a name says more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fuseproof.harness.perf.dump import is_denoising
from fuseproof.harness.profiles.usual import Usual, usual_times

SCHEMA = "fuseproof.profile/1"
CLASSES = (
    "gemm",
    "attention",
    "convolution",
    "norm",
    "elementwise",
    "copy",
    "reduce",
    "cat",
    "communication",
    "memset",
    "other",
)
COMPONENTS = ("transformer", "vae", "text_encoder", "pipeline")


@dataclass(frozen=True)
class Request:
    """What was drawn, and how. ``dtype`` is None in profiles that do not say."""

    model: str
    family: str
    backend: str
    weights: str
    width: int
    height: int
    frames: int | None
    steps: int
    guidance: float
    seed: int
    quality: str
    fastpaths: str
    cuda_graph: bool
    compile: bool
    batch: int
    flags: tuple[str, ...]
    dtype: str | None = None


@dataclass(frozen=True)
class Device:
    """``copy_bandwidth_gb_s``: a measured device-to-device copy, bytes read and written; what a floor is made of."""

    kind: str
    name: str
    copy_bandwidth_gb_s: float | None
    kernel_word: str
    no_saving_reason: str | None = None
    """Why chains have no floor and no saving."""


@dataclass(frozen=True)
class Stage:
    """``steps`` complete steps were profiled of ``steps_of_request``; a stage without steps is one whole pass."""

    name: str
    steps: int
    steps_of_request: int
    wall_us: float
    device_us: float
    kernels: int

    @property
    def passes_of_request(self) -> float:
        """By how much a step's (or pass's) time is multiplied to be the request's."""
        return max(self.steps_of_request, 1)

    @property
    def idle_us(self) -> float:
        """Wall time in which the device had nothing to do, over all profiled steps; 0 where kernels overlap."""
        return max(0.0, self.wall_us - self.device_us)


@dataclass(frozen=True)
class Step:
    """One complete profiled step."""

    stage: str
    index: int
    wall_us: float
    device_us: float
    kernels: int
    graph_launches: int


@dataclass(frozen=True)
class Row:
    """All launches of one kernel by one operation of one module on one key. Every launch is in exactly one row."""

    stage: str
    module: str
    module_class: str | None
    component: str
    site: str | None
    site_state: str | None
    line: str | None
    operation: str
    kernel: str
    kernel_class: str
    key: str | None
    calls: int
    """Over all profiled steps, as ``device_us`` is."""
    device_us: float
    bytes: int | None
    """Of one call: each distinct input read once, each output written once."""
    from_graph: bool
    calls_by_step: tuple[int, ...] = ()
    """Of each profiled step of the stage, as ``device_us_by_step``; empty in profiles that do not tell."""
    device_us_by_step: tuple[float, ...] = ()
    typical_us: float | None = None
    """``device_us`` with every disturbed call counted as the middle one of its like; None where nothing is told."""


@dataclass(frozen=True)
class KeyCalls:
    """How often a site was called with one key."""

    key: str
    calls: int
    layout: str | None


@dataclass(frozen=True)
class SiteRecord:
    """What became of a site in the profiled request."""

    site: str
    state: str
    reason: str | None
    calls_fused: int
    calls_eager: int
    keys: tuple[KeyCalls, ...]
    first_sight_ms: float | None
    jit_ms: float | None
    device_us: float | None
    """Over all profiled steps."""
    bytes: int | None
    """Of one step."""


@dataclass(frozen=True)
class Chain:
    """Pointwise kernels that follow each other on one tensor: what fusing them would save."""

    stage: str
    module: str
    operations: tuple[str, ...]
    classes: tuple[str, ...]
    line: str | None
    shape: str | None
    calls_per_step: float
    device_us_per_step: float
    bytes_per_step: int | None
    fused_floor_us_per_step: float | None
    saving_us_per_step: float | None
    fast_path: str | None
    fast_path_reason: str | None
    typical_us_per_step: float | None = None
    component: str | None = None
    site: str | None = None
    """The site that holds all its launches."""

    @property
    def usual_us_per_step(self) -> float:
        """Without what disturbed calls took beyond the usual, where the profile tells that."""
        return self.device_us_per_step if self.typical_us_per_step is None else self.typical_us_per_step


@dataclass(frozen=True)
class Attribution:
    """Shares of device time that are joined to a module, to a module or site, and to a line of code."""

    device_us: float
    to_module: float
    to_site_or_module: float
    to_line: float
    unattributed: tuple[tuple[str, float], ...]
    """Kernel and device time of what is joined to nothing."""


@dataclass(frozen=True)
class TraceFile:
    file: str
    bytes: int
    truncated: bool


@dataclass(frozen=True)
class Profile:
    """A whole profile. ``raw`` is the JSON object that it was read from."""

    source: str
    request: Request
    environment: Mapping[str, Any]
    device: Device
    note: str
    stages: tuple[Stage, ...]
    steps: tuple[Step, ...]
    rows: tuple[Row, ...]
    sites: tuple[SiteRecord, ...]
    chains: tuple[Chain, ...]
    attribution: Attribution
    trace: TraceFile | None
    warnings: tuple[str, ...]
    raw: Mapping[str, Any]

    @cached_property
    def main_stage(self) -> Stage:
        """The denoising stage that took the most device time; of a profile without one, the stage that did."""
        denoising = [stage for stage in self.stages if is_denoising(stage.name)]
        return max(denoising or self.stages, key=lambda stage: stage.device_us)

    @cached_property
    def by_stage(self) -> Mapping[str, Stage]:
        return {stage.name: stage for stage in self.stages}

    @cached_property
    def by_site(self) -> Mapping[str, SiteRecord]:
        return {site.site: site for site in self.sites}

    @cached_property
    def usual(self) -> Mapping[Row, Usual]:
        """What each row would have taken had every call been a usual one."""
        return usual_times(self.rows)

    def rows_of(self, stage: Stage) -> tuple[Row, ...]:
        """The rows of one stage."""
        return tuple(row for row in self.rows if row.stage == stage.name)

    @property
    def kernels_word(self) -> str:
        """``kernels`` or ``CPU operations``."""
        return f"{self.device.kernel_word}s"
