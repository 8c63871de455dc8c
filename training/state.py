"""What a stage keeps between runs, in one file: weights, their moving average, the optimizer, the curve."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from training.optimizers import Optimizer
from training.pace import Pace


@dataclass
class CurvePoint:
    """One point of a loss curve."""

    step: int
    seconds: float
    rate: float
    losses: dict[str, float]


class DivergedError(RuntimeError):
    """A loss or a weight is no longer a number. What was saved last is good."""

    next_step = (
        "lower --rate (half of it, say) and run the same command again: it goes on from the last good state; where it "
        "comes within the first steps, the rate is not the cause: try --no-compile"
    )


class Average:
    """A moving average of a model's weights: ``model`` is a copy of the trained one, in fp32."""

    def __init__(self, model: torch.nn.Module, trained: torch.nn.Module, decay: float) -> None:
        self.model = model.requires_grad_(False).eval()
        self.decay = decay
        self._targets = list(self.model.parameters())
        self._sources = list(trained.parameters())
        self.model.load_state_dict(trained.state_dict())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the trained weights; quickly in the first steps."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._targets, [source.detach() for source in self._sources], weight)


@dataclass
class StageState:
    """The parts of one stage, by name: modules, averages and the optimizer; and its curve."""

    modules: dict[str, torch.nn.Module]
    averages: dict[str, Average]
    optimizer: Optimizer
    curve: list[CurvePoint] = field(default_factory=list)

    def save(self, path: Path, pace: Pace) -> None:
        """Write everything to ``path``, by a rename. DivergedError, and nothing written, where a weight is wrong."""
        self.must_be_finite(pace.step)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "modules": {name: module.state_dict() for name, module in self.modules.items()},
            "averages": {name: average.model.state_dict() for name, average in self.averages.items()},
            "optimizer": self.optimizer.state_dict(),
            "curve": [vars(point) for point in self.curve],
            "step": pace.step,
            "spent_s": pace.spent_s,
            "optimizer_began_at": pace.optimizer_began_at,
            "is_finished": pace.is_finished,
        }
        save_whole(content, path)

    def note(self, pace: Pace, rate: float, losses: dict[str, float]) -> None:
        """Add a point to the curve; DivergedError where a loss is no number."""
        wrong = [f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value)]
        if wrong:
            raise DivergedError(f"at step {pace.step} {', '.join(wrong)}")
        self.curve.append(CurvePoint(pace.step, round(pace.spent_s, 2), rate, losses))

    def must_be_finite(self, step: int) -> None:
        """DivergedError, with a name, where a trained weight is infinite or no number."""
        for part, model in self.modules.items():
            names, values = zip(*model.named_parameters(), strict=True)
            sums = torch.stack([value.detach().float().sum() for value in values])
            wrong = (~torch.isfinite(sums)).nonzero()[:, 0].tolist()
            if wrong:
                raise DivergedError(f"at step {step} {part}.{names[wrong[0]]} and {len(wrong) - 1} more are no numbers")

    def load(self, path: Path, pace: Pace, device: torch.device) -> None:
        """Read what :meth:`save` wrote, and put ``pace`` where the stage was left."""
        content = torch.load(path, map_location=device, weights_only=True)
        for name, module in self.modules.items():
            module.load_state_dict(content["modules"][name])
        for name, average in self.averages.items():
            average.model.load_state_dict(content["averages"][name])
        self.optimizer.load_state_dict(content["optimizer"])
        self.curve[:] = [CurvePoint(**point) for point in content["curve"]]
        pace.step, pace.spent_before_s = content["step"], content["spent_s"]
        pace.optimizer_began_at = content["optimizer_began_at"]
        pace.started = time.monotonic()


def save_whole(content: Any, path: Path) -> None:
    """Write ``content`` for torch.load, by a rename: a file at ``path`` is always whole."""
    temporary = path.with_suffix(".new")
    torch.save(content, temporary)
    temporary.replace(path)


def averaged_weights(path: Path, name: str, device: torch.device) -> dict[str, Any]:
    """The averaged weights of one module of a stage that was saved."""
    weights: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)["averages"][name]
    return weights
