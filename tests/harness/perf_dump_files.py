"""Small perf dumps for tests: the keys sglang writes, and ours on top when a test asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data"
REAL_DUMPS = DATA / "perf_dumps"
LONGLIVE2 = [
    REAL_DUMPS / "longlive2" / f"i2v-{block}-{slot}.json" for block in ("r1", "r3") for slot in ("a1", "b1", "b2", "a2")
]
KLEIN = [REAL_DUMPS / "klein" / f"{block}-{slot}.json" for block in ("r1", "r2") for slot in ("a1", "b1", "b2", "a2")]

STAGES = (("TextEncodingStage", 40.0), ("DenoisingStage", 900.0), ("DecodingStage", 50.0))
ABSENT = object()


def stage_list(*stages: tuple[str, float]) -> list[dict[str, Any]]:
    return [{"name": name, "duration_ms": duration_ms} for name, duration_ms in stages]


def step_list(*times_ms: float) -> list[dict[str, Any]]:
    return [{"step": index, "duration_ms": time_ms} for index, time_ms in enumerate(times_ms)]


def peaks(allocated_mib: float, reserved_mib: float, **more: float) -> dict[str, float]:
    return {"peak_allocated_mb": allocated_mib, "peak_reserved_mb": reserved_mib, "peak_host_anon_mb": 0.0, **more}


def dump_values(**changes: Any) -> dict[str, Any]:
    """A complete dump with some keys replaced; ABSENT removes one."""
    values: dict[str, Any] = {
        "timestamp": "2026-01-02T03:04:05+00:00",
        "request_id": "request",
        "commit_hash": "a" * 40,
        "tag": "cli_generate",
        "total_duration_ms": 1000.0,
        "steps": stage_list(*STAGES),
        "denoise_steps_ms": step_list(450.0, 450.0),
        "memory_checkpoints": {"after_forward": peaks(2048.0, 3072.0)},
        "meta": {"prompt": ["a lamp"], "model": "org/name"},
    }
    values.update(changes)
    return {key: value for key, value in values.items() if value is not ABSENT}


def write_dump(path: Path, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dump_values(**changes)), encoding="utf-8")
    return path


def write_block(
    folder: Path, seconds: tuple[float, ...], *, name: str = "r1", order: str = "abba", **changes: Any
) -> list[Path]:
    """Four dumps in slot order; ``changes`` by arm letter replace keys of that arm's dumps."""
    seen: dict[str, int] = {}
    files = []
    for arm, total_s in zip(order, seconds, strict=True):
        seen[arm] = seen.get(arm, 0) + 1
        slot = f"{name}-{arm}{seen[arm]}"
        values = {"request_id": slot, "commit_hash": arm * 40, "total_duration_ms": total_s * 1000}
        files.append(
            write_dump(folder / f"{slot}.json", **(values | changes.get("both", {}) | changes.get(arm.upper(), {})))
        )
    return files
