"""UniPC for flow matching (``bh2``, order 2), its scalars made before the loop: the bits of diffusers' scheduler.

With x0 = x - sigma v the data that a velocity predicts, alpha = 1 - sigma and lambda = log alpha - log sigma, each step

1. corrects the latents that led here by what the model says of them (UniC), from the second step on;
2. predicts the latents at the next sigma (UniP), by this data and, at order 2, the one before.

Both are one form, ``keep x - pull m - pull (sum of weighted differences)``, whose scalars depend on sigmas alone.
``UniPCMultistepScheduler.step`` (diffusers 0.42.1) makes them anew in every step: each sigma waits for its way to the
device, and ``linalg.solve`` waits to tell of a singular matrix. Here they are made once a request, by the same
operations on the same device, so that they are the same bits (a logarithm rounds differently on a card than on a CPU),
and the loop waits for nothing. Only the sigma of x0 stays on the CPU, as there: a scalar on the CPU enters a product of
bf16 unrounded, one on the device does not.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.fastpaths.foreign_code import foreign_method_reason

UNIPC = "UniPCMultistepScheduler"
ORDER = 2
METHODS = (
    "step",
    "convert_model_output",
    "multistep_uni_p_bh_update",
    "multistep_uni_c_bh_update",
    "_sigma_to_alpha_sigma_t",
)
"""The methods whose work is done here."""
FORM = {
    "solver_order": ORDER,
    "solver_type": "bh2",
    "prediction_type": "flow_prediction",
    "predict_x0": True,
    "use_flow_sigmas": True,
    "thresholding": False,
}
"""The config that is written out here, as Wan is published with."""


@dataclass(frozen=True)
class Update:
    """The scalars of one way between two sigmas: 0-dim tensors on the device, but ``weights`` [order].

    ``spacing`` is the last interval of lambda by this one; None at order 1, which looks no further back.
    """

    keep: torch.Tensor
    pull: torch.Tensor
    weights: torch.Tensor
    spacing: torch.Tensor | None


def reject_reason(scheduler: Any) -> str | None:
    """Why this file's arithmetic is not that of ``scheduler.step``; None if it is."""
    kind = type(scheduler).__name__
    if kind != UNIPC:
        return f"the scheduler is {kind}, and what is written out is {UNIPC}"
    for key, expected in FORM.items():
        if scheduler.config.get(key) != expected:
            return f"the scheduler has {key} {scheduler.config.get(key)!r}, and what is written out has {expected!r}"
    if scheduler.solver_p is not None or scheduler.disable_corrector:
        return "the scheduler has another predictor, or steps without its corrector"
    foreign = foreign_method_reason(scheduler, METHODS)
    return None if foreign is None else f"the scheduler {foreign}"


class FlowUniPC:
    """One request's steps. ``scheduler`` holds the sigmas of this request; it is read, and never written to."""

    def __init__(self, scheduler: Any, device: torch.device) -> None:
        self._sigmas: torch.Tensor = scheduler.sigmas.cpu()
        on_device = self._sigmas.to(device)
        steps = len(scheduler.timesteps)
        orders = [_order(step, steps, lowers_last=scheduler.config.lower_order_final) for step in range(steps)]
        self._predictors = [_predictor(on_device, step, order) for step, order in enumerate(orders)]
        # The corrector of a step goes the way of the predictor that led there, at its order.
        self._correctors = [_corrector(on_device, step, order) for step, order in enumerate(orders[:-1], start=1)]
        self._step = 0
        self._data: list[torch.Tensor] = []
        self._last: torch.Tensor | None = None

    def restarted(self) -> FlowUniPC:
        """The same steps from the first one on, for other latents; the scalars are shared, what was seen is not."""
        again = copy(self)
        again._step, again._data, again._last = 0, [], None
        return again

    def __call__(self, velocity: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """``latents`` (fp32) at the next sigma, by the guided ``velocity`` of the same shape and any dtype."""
        step, self._step = self._step, self._step + 1
        data = latents - self._sigmas[step] * velocity
        if self._last is not None:
            latents = corrected(self._correctors[step - 1], self._last, data, self._data)
        self._data = [*self._data[-1:], data]
        self._last = latents
        return predicted(self._predictors[step], latents, self._data)


def predicted(update: Update, latents: torch.Tensor, data: list[torch.Tensor]) -> torch.Tensor:
    """UniP: from corrected ``latents`` and the ``data`` seen so far, the newest last, to the next sigma."""
    moved = update.keep * latents - update.pull * data[-1]
    change = 0 if update.spacing is None else _weighted(update.weights, update.spacing, data)
    return (moved - update.pull * change).to(latents.dtype)


def corrected(update: Update, last: torch.Tensor, data_here: torch.Tensor, data: list[torch.Tensor]) -> torch.Tensor:
    """UniC: the way from ``last`` to here once more, with ``data_here`` known; ``data`` is what was seen before."""
    moved = update.keep * last - update.pull * data[-1]
    change = 0 if update.spacing is None else _weighted(update.weights[:-1], update.spacing, data)
    change = change + update.weights[-1] * (data_here - data[-1])
    return (moved - update.pull * change).to(last.dtype)


def _weighted(weights: torch.Tensor, spacing: torch.Tensor, data: list[torch.Tensor]) -> torch.Tensor:
    """The differences of neighbouring data, [1, 1, C, ...] stacked by the sample, by their weights."""
    difference = (data[-2] - data[-1]) / spacing
    return torch.einsum("k,bkc...->bc...", weights, torch.stack([difference], dim=1))


def _order(step: int, steps: int, *, lowers_last: bool) -> int:
    """The predictor's order: 1 at first, with nothing to look back at, and 1 at last where the config says so."""
    highest = min(ORDER, steps - step) if lowers_last else ORDER
    return min(highest, step + 1)


def _predictor(sigmas: torch.Tensor, step: int, order: int) -> Update:
    scalars = _Scalars(sigmas, step, step + 1, order)
    return scalars.update(_half(sigmas))


def _corrector(sigmas: torch.Tensor, step: int, order: int) -> Update:
    scalars = _Scalars(sigmas, step - 1, step, order)
    return scalars.update(_half(sigmas) if order == 1 else scalars.solved_weights())


def _half(sigmas: torch.Tensor) -> torch.Tensor:
    return torch.ones(1, dtype=sigmas.dtype, device=sigmas.device) * 0.5


class _Scalars:
    """What the way from ``sigmas[start]`` to ``sigmas[end]`` comes to, operation by operation as diffusers does it."""

    def __init__(self, sigmas: torch.Tensor, start: int, end: int, order: int) -> None:
        sigma, sigma_start = sigmas[end], sigmas[start]
        self._alpha = 1 - sigma
        self._keep = sigma / sigma_start
        lambda_start = _lambda(sigma_start)
        interval = _lambda(sigma) - lambda_start
        self._negative = -interval
        self._shrink = torch.expm1(self._negative)
        self._spacing = (_lambda(sigmas[start - 1]) - lambda_start) / interval if order == ORDER else None

    def update(self, weights: torch.Tensor) -> Update:
        """They, and the ``weights`` of the differences."""
        return Update(self._keep, self._alpha * self._shrink, weights, self._spacing)

    def solved_weights(self) -> torch.Tensor:
        """The weights [2] of the two differences at order 2."""
        assert self._spacing is not None, "order 1 has nothing to solve"
        nodes = torch.stack([self._spacing, torch.ones((), device=self._spacing.device)])
        phi = self._shrink / self._negative - 1
        first = phi / self._shrink
        second = (phi / self._negative - 1 / 2) * 2 / self._shrink
        matrix = torch.stack([torch.pow(nodes, 0), torch.pow(nodes, 1)])
        solved: torch.Tensor = torch.linalg.solve(matrix, torch.stack([first, second]))
        return solved


def _lambda(sigma: torch.Tensor) -> torch.Tensor:
    return torch.log(1 - sigma) - torch.log(sigma)
