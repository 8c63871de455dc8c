"""A stand-in for ``fuseproof.pipelines.session``: the same surface, no torch, images made from seed and prompt."""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Image = npt.NDArray[np.float32]


@dataclass(frozen=True)
class FakeStage:
    name: str
    milliseconds: float


@dataclass(frozen=True)
class FakeResult:
    image: Image
    latents: Image
    latents_dtype: str
    rewritten_prompt: str | None
    stages: tuple[FakeStage, ...]
    denoise_steps_ms: tuple[float, ...]
    worker_ms: float
    work: dict[str, int]
    frame_arrivals: tuple[Any, ...] = ()


@dataclass
class FakeSession:
    """Records what it was asked; ``outcomes`` replaces a request's image, or raises, by request index."""

    outcomes: dict[int, Any] = field(default_factory=dict)
    opened_with: Any = None
    dummy_family: Any = None
    warmups: list[tuple[Any, int | None]] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    is_closed: bool = False
    backend: str = "native"
    fallback_reason: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    warnings: list[str] = field(default_factory=list)
    graphs: dict[str, Any] = field(default_factory=lambda: {"captured": 0})
    load_ms: float = 500.0
    warmup_ms: float = 0.0
    compile_ms: float = 0.0
    warmup_steps: int | None = None
    found: dict[str, str] = field(default_factory=dict)

    def warm_up(self, request: Any, steps: int | None = None) -> float:
        self.warmups.append((request, steps))
        self.warmup_ms += 250.0
        self.warmup_steps = steps or request.num_inference_steps
        return 250.0

    def run(self, request: Any) -> FakeResult:
        outcome = self.outcomes.get(len(self.requests))
        self.requests.append(request)
        if isinstance(outcome, BaseException):
            raise outcome
        return FakeResult(
            image=picture(request) if outcome is None else outcome,
            latents=np.zeros((1, 16, 64), np.float32),
            latents_dtype="float32",
            rewritten_prompt=None,
            stages=(FakeStage("TextEncodingStage", 10.0), FakeStage("DenoisingStage", 80.0)),
            denoise_steps_ms=(40.0, 40.0),
            worker_ms=100.0,
            work={"transformer_calls": 2, "transformer_tokens": 100},
        )

    def memory_checkpoints(self) -> dict[str, dict[str, float]]:
        return {"runtime_peak": {"peak_host_rss_mb": 123.0}}

    def fastpaths_report(self) -> dict[str, Any]:
        site = {"state": "fused", "reason": None, "calls_fused": 14, "calls_eager": 2}
        return {"requested": "auto", "quality": "lossless", "gate": "enforce", "sites": {"rotary": site}}

    def mismatches(self) -> dict[str, str]:
        return self.found

    def guidance_skipped_steps(self, request: Any) -> tuple[int, ...]:
        return ()

    def graphs_report(self) -> dict[str, Any]:
        return self.graphs

    def environment(self) -> dict[str, Any]:
        return {"device": self.device}

    def close(self) -> None:
        self.is_closed = True


def picture(request: Any) -> Image:
    """An image in 0..1, [H, W, 3] float32, or a clip [T, H, W, 3], that depends on prompt and seed."""
    generator = np.random.RandomState(zlib.crc32(f"{request.prompt}|{request.seed}".encode()))
    frames = () if request.num_frames is None else (request.num_frames,)
    return generator.random_sample((*frames, request.height, request.width, 3)).astype(np.float32)


def install(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    """Put the stand-in where ``generate`` imports the real module from."""
    session = FakeSession()

    class Opener:
        @staticmethod
        def open(model: Any, checkpoint: Any, settings: Any, observer: Any) -> FakeSession:
            session.opened_with = settings
            return session

        @staticmethod
        def open_dummy(family: Any, settings: Any, observer: Any) -> FakeSession:
            session.opened_with, session.dummy_family = settings, family
            return session

    class Settings:
        def __init__(self, **values: Any) -> None:
            self.__dict__.update(values)

    module = ModuleType("fuseproof.pipelines.session")
    module.Session = Opener  # type: ignore[attr-defined]
    module.SessionSettings = Settings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fuseproof.pipelines.session", module)
    return session
