"""Perf dumps: what one run of one arm measured, ours (``fuseproof.perf/1``) or sglang-diffusion's.

Both tools write one flat JSON object; ours adds keys to sglang's and changes none. Times are milliseconds, memory is
MiB. The top-level times describe request 0; :class:`PerfDump` also offers the sums over a run's requests, which is what
a slot of a campaign is judged by. Reading is strict about every number that is used and indifferent to unknown keys.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.atomic_files import write_text_atomically
from fuseproof.harness.perf.fields import Fields, read_json_object

SCHEMA = "fuseproof.perf/1"
LEGACY_STEP_PREFIX = "denoising_step_"
NEXT_STEP = "Pass files that `fuseproof generate --perf-dump-path FILE` or `sglang generate` wrote."


@dataclass(frozen=True)
class PerfDump:
    """One perf dump, validated. ``*_ms`` are milliseconds, ``memory`` is MiB, missing values are None or empty."""

    path: Path
    label: str
    total_ms: float
    stages: dict[str, float]
    """Stage → ms of request 0: entries of one name summed, in first-recorded order."""
    stage_entries: tuple[tuple[str, float], ...]
    """The entries of ``steps`` exactly as recorded, duplicates and per-step entries of old dumps included."""
    denoise_ms: float | None
    denoise_source: str | None
    """``"stages"``, ``"steps"`` (summed from the step times) or None when the dump says nothing about denoising."""
    denoise_steps_ms: tuple[float, ...]
    memory: dict[str, dict[str, float]]
    commit_hash: str | None
    model: str | None
    prompts: tuple[str, ...]
    schema: str | None
    timers: dict[str, float]
    config: dict[str, Any]
    environment: dict[str, Any]
    requests: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    fastpaths: dict[str, Any]
    graphs: dict[str, Any]
    warnings: list[str]
    raw: dict[str, Any]

    @property
    def short_commit(self) -> str:
        """Eight digits of the commit, with ``+dirty`` where the checkout was; "unknown" without one."""
        if self.commit_hash is None:
            return "unknown"
        digits, plus, state = self.commit_hash.partition("+")
        return f"{digits[:8]}{plus}{state}"

    @property
    def request_count(self) -> int:
        """How many requests the run served; a dump without ``requests`` (sglang's) describes one."""
        return max(1, len(self.requests))

    @property
    def worker_ms(self) -> float:
        """Worker E2E of the run: all stages of all requests."""
        return self.timers.get("worker_ms", self.total_ms)

    @property
    def run_denoise_ms(self) -> float | None:
        """Denoise time of the run, summed over its requests."""
        return self.timers.get("denoise_ms", self.denoise_ms)

    @property
    def client_ms(self) -> float | None:
        """Client E2E of the run, saving included; sglang's dumps do not hold it."""
        return self.timers.get("client_ms")

    @cached_property
    def run_stages(self) -> dict[str, float]:
        """Stage → ms of the run, summed over its requests."""
        if self.request_count == 1:
            return self.stages
        entries: list[tuple[str, float]] = []
        for index, request in enumerate(self.requests):
            entries += _stage_entries(Fields(request, self.path, f"requests[{index}].", NEXT_STEP))
        return _summed(entries)

    @cached_property
    def request_worker_ms(self) -> tuple[float, ...]:
        """Worker time of each request, in order; empty when the dump does not list them all."""
        fields = [
            Fields(request, self.path, f"requests[{index}].", NEXT_STEP) for index, request in enumerate(self.requests)
        ]
        times = [field.optional_time("worker_ms") for field in fields]
        return tuple(time for time in times if time is not None) if None not in times else ()


def read_perf_dump(path: str | os.PathLike[str]) -> PerfDump:
    """Read and validate one perf dump.

    Raises :class:`FuseproofError` naming the file and the cause: missing, a directory, empty, not JSON (with the
    position), not an object, or a field whose value is no usable number.
    """
    source = Path(path)
    raw = read_json_object(source, next_step=NEXT_STEP)
    fields = Fields(raw, source, next_step=NEXT_STEP)
    schema = _schema(fields)
    total_ms = fields.time("total_duration_ms")
    entries = _stage_entries(fields)
    stages = _summed(entry for entry in entries if not is_legacy_step(entry[0]))
    steps_ms = _step_times(fields, entries)
    denoise_ms, denoise_source = denoise_time(stages, steps_ms)
    meta = fields.mapping("meta")
    return PerfDump(
        path=source,
        label=source.name,
        total_ms=total_ms,
        stages=stages,
        stage_entries=tuple(entries),
        denoise_ms=denoise_ms,
        denoise_source=denoise_source,
        denoise_steps_ms=steps_ms,
        memory=_memory(fields),
        commit_hash=_commit(raw.get("commit_hash")),
        model=None if meta.get("model") is None else str(meta["model"]),
        prompts=_prompts(meta.get("prompt")),
        schema=schema,
        timers=_timers(fields),
        config=fields.mapping("config"),
        environment=fields.mapping("environment"),
        requests=fields.mappings("requests"),
        outputs=fields.mappings("outputs"),
        fastpaths=fields.mapping("fastpaths"),
        graphs=fields.mapping("graphs"),
        warnings=[str(warning) for warning in fields.sequence("warnings")],
        raw=raw,
    )


def denoise_time(stages: Mapping[str, float], steps_ms: Sequence[float]) -> tuple[float | None, str | None]:
    """The denoise time by the naming rule, and where it came from.

    Stages whose name ends in ``DenoisingStage`` or ``RefinementStage`` count, names containing
    ``BeforeDenoisingStage`` do not. Without any, the step times are summed; without those either, it is unknown.
    """
    denoising = [duration_ms for name, duration_ms in stages.items() if is_denoising(name)]
    if denoising:
        return math.fsum(denoising), "stages"
    if steps_ms:
        return math.fsum(steps_ms), "steps"
    return None, None


def is_denoising(stage: str) -> bool:
    """Whether a stage's name says that it is the denoise loop, or part of it."""
    return stage.endswith(("DenoisingStage", "RefinementStage")) and "BeforeDenoisingStage" not in stage


def is_legacy_step(stage: str) -> bool:
    """Whether an entry of ``steps`` is one denoise step, as dumps recorded them before ``denoise_steps_ms``."""
    return stage.startswith(LEGACY_STEP_PREFIX) and stage.removeprefix(LEGACY_STEP_PREFIX).isdecimal()


def write_perf_dump(path: str | os.PathLike[str], dump: Mapping[str, Any]) -> None:
    """Write a perf dump as strict JSON, complete or not at all.

    Missing parent folders are created. A NaN or an infinity, and whatever the operating system refuses, raise
    :class:`FuseproofError` naming the path.
    """
    try:
        text = json.dumps(dump, indent=2, allow_nan=False)
    except ValueError as error:
        raise FuseproofError(f"The perf dump for {os.fspath(path)} is not strict JSON: {error}.") from error
    write_text_atomically(path, text + "\n")


def _schema(fields: Fields) -> str | None:
    schema = fields.optional_text("schema")
    if schema not in (None, SCHEMA):
        raise FuseproofError(f"{fields.path} has schema {schema!r}, expected {SCHEMA!r} or none.", next_step=NEXT_STEP)
    return schema


def _stage_entries(fields: Fields) -> list[tuple[str, float]]:
    entries = []
    for step in fields.children("steps"):
        entries.append((step.text("name"), step.duration("duration_ms")))
    return entries


def _summed(entries: Iterable[tuple[str, float]]) -> dict[str, float]:
    stages: dict[str, float] = {}
    for name, duration_ms in entries:
        stages[name] = stages.get(name, 0.0) + duration_ms
    return stages


def _step_times(fields: Fields, entries: Sequence[tuple[str, float]]) -> tuple[float, ...]:
    recorded = tuple(step.duration("duration_ms") for step in fields.children("denoise_steps_ms"))
    return recorded or tuple(duration_ms for name, duration_ms in entries if is_legacy_step(name))


def _memory(fields: Fields) -> dict[str, dict[str, float]]:
    checkpoints = {}
    for name in fields.mapping("memory_checkpoints"):
        checkpoint = fields.child("memory_checkpoints").child(name)
        checkpoints[name] = {key: checkpoint.duration(key) for key in _recorded(checkpoint, "_mb")}
    return checkpoints


def _timers(fields: Fields) -> dict[str, float]:
    timers = fields.child("timers")
    # what no stage accounts for may be negative: timers that overlap say so instead of failing
    times = {name: timers.number(name) for name in _recorded(timers, "_ms")}
    for name in ("worker_ms", "client_ms"):
        if name in times:
            timers.time(name)
    return times


def _recorded(fields: Fields, unit: str) -> list[str]:
    return [name for name, value in fields.values.items() if name.endswith(unit) and value is not None]


def _commit(value: Any) -> str | None:
    return None if value in (None, "", "N/A") else str(value)


def _prompts(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(str(prompt) for prompt in value)
    return (str(value),)
