"""Runners over the fake device, and what tests ask of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuseproof.fastpaths.graphs import GraphRunner
from tests.fastpaths.fake_capture import FakeCapture


def runner(function: Callable[..., Any], **settings: Any) -> GraphRunner:
    return GraphRunner(function, name="function", device=settings.pop("device", FakeCapture()), **settings)


def captured(function: Callable[..., Any], *args: Any, **settings: Any) -> GraphRunner:
    """A runner that has captured the key of ``args``."""
    graphed = runner(function, **settings)
    with graphed.capturing():
        graphed(*args)
    assert 1 == graphed.report()["captured"], graphed.report()["reason"]
    return graphed


def counts(graphed: GraphRunner) -> dict[str, int]:
    """The counters that are not zero."""
    report = graphed.report()
    return {
        name: report[name] for name in ("captured", "replayed", "missed", "rejected", "unsupported") if report[name]
    }


def rows(count: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def nested(x: torch.Tensor, *, pair: Any, options: Any = None, flip: bool = False) -> Any:
    first, (second, scale) = pair
    result = x * first + second * scale
    return {"out": -result if flip else result, "parts": [first + 1, (second, None)], "scale": scale}
