"""A stand-in for ``fuseproof.pipelines.loaded``: one load, sessions that note what is done to them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.cli.fake_session import FakeResult, FakeSession, FakeStage


@dataclass
class FakeLoaded:
    """What tests set: times, outcomes and work by the arm's ``fastpaths``; what they read: ``events``."""

    worker_ms: dict[str, list[float]] = field(default_factory=dict)
    """Taken in turn, the last one again and again."""
    raises: dict[int, BaseException] = field(default_factory=dict)
    """By number of the timed request, from 1."""
    grey: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    peaks_mb: dict[str, float] = field(default_factory=dict)
    load_ms: float = 750.0
    loads: list[Any] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    requests: int = 0
    pipe: Any = None
    idle: set[str] = field(default_factory=set)
    """Arms that ask for fast paths and get none."""
    on_request: Callable[[int, str], None] = lambda number, arm: None
    """Told of every timed request: its number, from 1, and its arm."""

    def session(self, settings: Any) -> SlotSession:
        self.events.append(f"open {settings.fastpaths}")
        return SlotSession(loaded=self, opened_with=settings)

    def settle(self, *, gives_back: bool) -> None:
        self.events.append("give back" if gives_back else "settle")

    def time_of(self, arm: str) -> float:
        times = self.worker_ms.get(arm, [100.0])
        return times.pop(0) if len(times) > 1 else times[0]


@dataclass
class SlotSession(FakeSession):
    """One slot's session."""

    loaded: Any = None

    @property
    def arm(self) -> str:
        return str(self.opened_with.fastpaths)

    def warm_up(self, request: Any, steps: int | None = None) -> float:
        self.loaded.events.append("warm up")
        return super().warm_up(request, steps)

    def run(self, request: Any) -> FakeResult:
        self.loaded.events.append("run")
        self.loaded.requests += 1
        self.loaded.on_request(self.loaded.requests, self.arm)
        if self.loaded.requests in self.loaded.raises:
            raise self.loaded.raises[self.loaded.requests]
        result = super().run(request)
        worker_ms = self.loaded.time_of(self.arm)
        stages = (FakeStage("TextEncodingStage", 0.1 * worker_ms), FakeStage("DenoisingStage", 0.8 * worker_ms))
        image = np.clip(result.image + np.float32(self.loaded.grey.get(self.arm, 0.0)), 0, 1)
        work = result.work | {"transformer_tokens": self.loaded.tokens.get(self.arm, 100)}
        return dataclasses.replace(result, image=image, stages=stages, worker_ms=worker_ms, work=work)

    def fastpaths_report(self) -> dict[str, Any]:
        is_off = self.arm == "off"
        state = {"state": "off" if is_off else "fused", "reason": None, "first_sight_ms": 0.0 if is_off else 30.0}
        fused = 0 if is_off or self.arm in self.loaded.idle else 14
        site = {**state, "jit_ms": 0.0 if is_off else 20.0, "calls_fused": fused, "calls_eager": 0}
        return {"requested": self.arm, "quality": "lossless", "gate": "enforce", "sites": {"rotary": site}}

    def memory_checkpoints(self) -> dict[str, dict[str, float]]:
        peak = self.loaded.peaks_mb.get(self.arm)
        device = {} if peak is None else {"peak_allocated_mb": peak, "peak_reserved_mb": peak + 64}
        return {"after_forward": {"peak_host_rss_mb": 123.0, **device}}

    def close(self) -> None:
        self.loaded.events.append("close")


def install(monkeypatch: pytest.MonkeyPatch) -> FakeLoaded:
    """Put the stand-in where a quick run imports the real module from."""
    loaded = FakeLoaded()

    class Loader:
        @staticmethod
        def load(family: Any, checkpoint: Any, settings: Any) -> FakeLoaded:
            loaded.loads.append((family, settings))
            return loaded

    module = ModuleType("fuseproof.pipelines.loaded")
    module.LoadedPipeline = Loader  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fuseproof.pipelines.loaded", module)
    return loaded
