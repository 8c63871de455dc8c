"""Writes campaign folders as the harness leaves them on disk, from a few numbers, without running anything.

Everything is fixed: times, clock, hashes, pictures. A slot's picture is named by an integer; equal integers are equal
pixels and equal raw arrays.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fuseproof.schedules.order import Orientation, arms_in_order, labels_in_order, orientation

SIZE = 16
DEGENERATE_PICTURE = -1
PROMPT = "a red panda"
REQUEST_FLAGS = f"--model-path embedded:longcat-image --prompt {shlex.quote(PROMPT)} --width 16 --height 16 --seed 42"
CONFIG: dict[str, Any] = {
    "backend": "native",
    "width": SIZE,
    "height": SIZE,
    "num_inference_steps": 8,
    "guidance_scale": 4.5,
    "seed": 42,
    "dtype": "float32",
    "device": "cpu",
    "generator_device": "cpu",
    "gate": "enforce",
    "enable_torch_compile": False,
    "performance_mode": "auto",
    "negative_prompt": "",
    "image_sha256": [],
    "warmup_mode": "request",
    "warmup_steps": 1,
    "resolved_revision": None,
    "load_format": "auto",
    "weights": None,
}
ENVIRONMENT = {"os": "Linux", "cpu": "Synthetic CPU", "python": "3.12.0", "versions": {"torch": "2.13.0"}}


@cache
def picture_pixels(number: int) -> np.ndarray:
    """uint8 [16, 16, 3]; picture -1 is constant, hence degenerate."""
    if number == DEGENERATE_PICTURE:
        return np.zeros((SIZE, SIZE, 3), dtype=np.uint8)
    base = np.random.RandomState(7).randint(40, 200, (SIZE, SIZE, 3))
    noise = np.random.RandomState(1000 + number).randint(-2, 3, (SIZE, SIZE, 3))
    return (base + noise).astype(np.uint8)


@cache
def picture_png(number: int, compress_level: int = 1) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture_pixels(number)).save(buffer, format="PNG", compress_level=compress_level)
    return buffer.getvalue()


def _array_sha256(array: np.ndarray) -> str:
    shape = "x".join(str(length) for length in array.shape)
    return hashlib.sha256(f"{array.dtype}|{shape}|".encode("ascii") + array.tobytes()).hexdigest()


@cache
def output_record(number: int, file_name: str, raw_number: int | None) -> dict[str, Any]:
    """One entry of ``outputs`` for picture ``number``; ``raw_number`` tells raw arrays apart (None: no raw hash)."""
    pixels = picture_pixels(number)
    raw = (
        None if raw_number is None else _array_sha256(pixels.astype(np.float32) / 255 + np.float32(raw_number) / 2**20)
    )
    return {
        "path": f"outputs/{file_name}",
        "file_sha256": hashlib.sha256(picture_png(number)).hexdigest(),
        "pixels_sha256": _array_sha256(pixels),
        "raw_sha256": raw,
        "latents_sha256": raw,
        "width": SIZE,
        "height": SIZE,
        "frames": 1,
        "degenerate": "constant" if number == DEGENERATE_PICTURE else None,
    }


@dataclass
class Run:
    """What one slot measured; the defaults are a healthy native run on a CPU."""

    worker_s: float | None = 10.0
    denoise_s: float | None = None
    client_s: float | None = None
    save_s: float | None = None
    load_s: float | None = None
    warmup_s: float | None = None
    pictures: Sequence[int] = (1,)
    has_raw: bool = True
    raw_shift: int = 0
    compress_level: int = 1
    peak_rss_mib: float | None = 1000.0
    peak_allocated_mib: float | None = None
    peak_reserved_mib: float | None = None
    state: str = "done"
    reason_code: str | None = None
    reason: str | None = None
    is_busy: bool = False
    is_contention_measured: bool = True
    wall_s: float = 19.0
    disturbers: Sequence[tuple[str, float]] = (("cc1plus", 0.8),)
    config: Mapping[str, Any] = field(default_factory=dict)
    prompts: Sequence[str] = (PROMPT,)
    model: str = "embedded:longcat-image"
    steps_recorded: int = 8
    work: Mapping[str, Any] | None = None
    sites: Mapping[str, Any] | None = None
    graphs: Mapping[str, Any] = field(default_factory=dict)
    commit: str = "N/A"
    schema: str | None = "fuseproof.perf/1"
    log_tail: Sequence[str] = ()
    output_overrides: Mapping[str, Any] = field(default_factory=dict)
    has_dump: bool = True
    warnings: Sequence[str] = ()
    environment: Mapping[str, Any] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    stages: Sequence[str] = ("DenoisingStage",)
    flags: Sequence[str] = ()
    stdout: str = ""


class CampaignBuilder:
    """Collects slots and writes them as a campaign folder; every method returns the builder."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "synthetic",
        blocks: int = 2,
        cells: Mapping[str, Mapping[str, str]] | Sequence[str] = ("panda",),
        baseline_flags: str = "--fastpaths=off",
        candidate_flags: str = "--fastpaths=auto",
        further: Mapping[str, str] | None = None,
        primary: str = "worker",
        min_effect: float = 0.01,
        order: str = "mirrored",
        status: str = "complete",
        environment: Mapping[str, Any] | None = None,
        command: Sequence[str] = ("fuseproof", "abba", "synthetic"),
    ) -> None:
        self.directory = directory
        self.order = order
        self.status = status
        self.name = name
        self.environment = dict(ENVIRONMENT if environment is None else environment)
        self.command = list(command)
        named = cells if isinstance(cells, Mapping) else {cell: {} for cell in cells}
        self.plan: dict[str, Any] = {
            "schema": 1,
            "name": name,
            "title": "A synthetic campaign",
            "arms": {
                "baseline": {"name": "baseline", "flags": baseline_flags, "command": None, "env": {}},
                "candidate": {"name": "candidate", "flags": candidate_flags, "command": None, "env": {}},
            },
            "cells": [
                {"name": cell, "flags": REQUEST_FLAGS, "contract": "exact", **more} for cell, more in named.items()
            ],
            "blocks": blocks,
            "order": order,
            "primary": primary,
            "min_effect": min_effect,
            "timeout_s": 60.0,
            "warmup_slots": 0,
        }
        for key, flags in (further or {}).items():  # C, D, ... with the key as name
            self.plan["arms"][key] = {"name": key, "flags": flags, "command": None, "env": {}}
        self.arms = len(self.plan["arms"])
        self.slots: list[dict[str, Any]] = []
        self._clock_s = 0.0

    def block(
        self,
        runs: Sequence[Run],
        *,
        cell: str = "panda",
        block: int = 1,
        attempt: int = 1,
        direction: Orientation | None = None,
        positions: Sequence[int] | None = None,
    ) -> CampaignBuilder:
        """Slots of one attempt at a block, in slot order; fewer than four runs make an unfinished block."""
        way = orientation(block - 1, self.order, self.arms) if direction is None else direction
        for position, run in zip(positions or range(1, 1 + len(way)), runs, strict=False):
            arm, label = arms_in_order(way)[position - 1], labels_in_order(way)[position - 1]
            self._slot(run, cell, block, attempt, position, arm, label, way, "timed")
        return self

    def blocks(self, worker: Sequence[Sequence[float]], *, cell: str = "panda", **more: Any) -> CampaignBuilder:
        """Blocks from rows of worker seconds in slot order; ``more`` is passed to every run."""
        for index, row in enumerate(worker):
            self.block([Run(worker_s=seconds, **more) for seconds in row], cell=cell, block=index + 1)
        return self

    def warmup(self, run: Run, *, cell: str = "panda", block: int = 1, arm: str = "A") -> CampaignBuilder:
        way = orientation(block - 1, self.order, self.arms)
        self._slot(run, cell, block, 1, 0, arm, f"warm-up {arm}", way, "warmup")
        return self

    def _slot(
        self, run: Run, cell: str, block: int, attempt: int, position: int, arm: str, label: str, way: str, kind: str
    ) -> None:
        suffix = "" if attempt == 1 else f".{attempt}"
        identity = f"{cell}/{block:02d}{suffix}-{position}-{arm}"
        folder = self.directory / "slots" / identity
        (folder / "outputs").mkdir(parents=True)
        started = self._clock_s
        self._clock_s += 20.0
        result = {
            "schema": "fuseproof.slot/1",
            "id": identity,
            "cell": cell,
            "block": block,
            "attempt": attempt,
            "position": position,
            "arm": arm,
            "label": label,
            "orientation": way,
            "kind": kind,
            "state": run.state,
            "reason_code": run.reason_code,
            "reason": run.reason,
            "command": [*self._command(arm, cell, folder), *run.flags],
            "environment_overrides": {"OMP_NUM_THREADS": "1", **run.variables},
            "started": "2026-01-01T00:00:00+00:00",
            "ended": "2026-01-01T00:00:20+00:00",
            "started_monotonic_s": started,
            "ended_monotonic_s": started + run.wall_s,
            "wall_s": run.wall_s,
            "returncode": 0 if run.state in ("done", "superseded") else 1,
            "times": {
                "worker_s": run.worker_s,
                "denoise_s": run.denoise_s,
                "client_s": run.client_s,
                "save_s": run.save_s,
                "load_s": run.load_s,
                "warmup_s": run.warmup_s,
                "compile_s": None,
            },
            "memory": {
                "peak_rss_mib": run.peak_rss_mib,
                "peak_allocated_mib": run.peak_allocated_mib,
                "peak_reserved_mib": run.peak_reserved_mib,
                "load_peak_mib": None,
                "warmup_peak_mib": None,
            },
            "outputs": self._outputs(run, folder) if run.state == "done" else [],
            "contention": {
                "other_cpu_share": None if not run.is_contention_measured else 0.8 if run.is_busy else 0.01,
                "busy": run.is_busy,
                "threshold": 0.1,
                "worst": [{"name": name, "cpu_share": share} for name, share in run.disturbers if run.is_busy],
            },
            "work": run.work,
            "fastpaths": None if run.sites is None else {"requested": "auto", "sites": run.sites},
            "log_tail": list(run.log_tail),
        }  # fmt: skip
        (folder / "result.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
        if run.has_dump and run.state == "done":
            (folder / "perf.json").write_text(json.dumps(self._dump(run, identity), indent=1), encoding="utf-8")
        (folder / "stdout.log").write_text(run.stdout, encoding="utf-8")
        if run.state == "done":
            listing = "".join(
                f"{own['raw_sha256'] or own['pixels_sha256'] or own['file_sha256']}  {own['path']}\n"
                for own in result["outputs"]
            )
            (folder / "frames.sha256").write_text(listing, encoding="utf-8", errors="backslashreplace")
        keys = "id cell block attempt position arm label orientation kind state reason_code"
        self.slots.append({key: result[key] for key in keys.split()} | {"directory": f"slots/{identity}"})

    def _command(self, arm: str, cell: str, folder: Path) -> list[str]:
        files = [f"{folder.resolve()}/perf.json", f"{folder.resolve()}/outputs"]
        role = list(self.plan["arms"])[ord(arm) - ord("A")]
        template = self.plan["arms"][role]["command"]
        if template is not None:
            return shlex.split(template.format(perf_dump=files[0], output_dir=files[1]))
        cell_flags = next((entry["flags"] for entry in self.plan["cells"] if entry["name"] == cell), REQUEST_FLAGS)
        flags = f"{cell_flags} {self.plan['arms'][role]['flags']}"
        program = ["/opt/venv/bin/python", "-m", "fuseproof", "generate", *shlex.split(flags)]
        return [*program, "--perf-dump-path", files[0], "--output-path", files[1]]

    def _outputs(self, run: Run, folder: Path) -> list[dict[str, Any]]:
        records = []
        for index, number in enumerate(run.pictures):
            name = f"image-{index}.png"
            raw_number = number + run.raw_shift if run.has_raw else None
            content = picture_png(number, run.compress_level)
            own = {"file_sha256": hashlib.sha256(content).hexdigest()}
            records.append(output_record(number, name, raw_number) | own | dict(run.output_overrides))
            (folder / records[-1]["path"]).write_bytes(content)
        return records

    def _dump(self, run: Run, identity: str) -> dict[str, Any]:
        worker_ms = (run.worker_s or 1.0) * 1000.0
        step_ms = worker_ms / 2 / max(1, run.steps_recorded)
        steps = [{"step": step, "duration_ms": step_ms} for step in range(run.steps_recorded)]
        dump: dict[str, Any] = {
            "timestamp": "2026-01-01T00:00:00+00:00",
            "request_id": identity,
            "commit_hash": run.commit,
            "tag": "cli_generate",
            "total_duration_ms": worker_ms,
            "steps": [{"name": name, "duration_ms": worker_ms / (1 + len(run.stages))} for name in run.stages],
            "denoise_steps_ms": steps,
            "memory_checkpoints": {},
            "meta": {"prompt": list(run.prompts), "model": run.model},
        }
        stated = {name: getattr(run, f"{name}_s") for name in ("denoise", "client", "save", "load", "warmup")}
        timers = {f"{name}_ms": seconds * 1000.0 for name, seconds in stated.items() if seconds is not None}
        dump |= {"timers": timers} if timers else {}
        if run.schema is not None:
            timers = {"worker_ms": worker_ms, **timers}
            dump |= {"schema": run.schema, "config": CONFIG | dict(run.config), "timers": timers}
            dump |= {
                "requests": [] if run.work is None else [{"index": 0, "work": dict(run.work)}],
                "outputs": [],
                "fastpaths": {"sites": run.sites or {}},
                "graphs": dict(run.graphs),
                "warnings": list(run.warnings),
            }
        if run.environment is not None:
            dump["environment"] = dict(run.environment)
        return dump

    def write(self) -> Path:
        """Write campaign.json and return the folder."""
        campaign = {
            "schema": "fuseproof.campaign/1",
            "name": self.name,
            "created": "2026-01-01T00:00:00+00:00",
            "fuseproof_version": "0.1.0",
            "status": self.status,
            "command": self.command,
            "plan": self.plan,
            "environment": self.environment,
            "slots": self.slots,
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "campaign.json").write_text(json.dumps(campaign, indent=1), encoding="utf-8")
        return self.directory
