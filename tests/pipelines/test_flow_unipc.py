"""UniPC with its scalars made before the loop: the bits of diffusers' scheduler, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuseproof.pipelines.flow_unipc import FlowUniPC, reject_reason
from fuseproof.pipelines.tiny.wan import flow_scheduler

CPU = torch.device("cpu")
SHAPE = (1, 4, 3, 2, 5)


def scheduler_with(**changes: Any) -> Any:
    plain = flow_scheduler(5.0)
    return type(plain).from_config(plain.config, **changes)


def draw(seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 50])
@pytest.mark.parametrize(
    "changes",
    [{}, {"flow_shift": 1.0}, {"lower_order_final": False, "final_sigmas_type": "sigma_min"}],
    ids=["as-published", "unshifted", "order-2-to-the-end"],
)
def test_every_step_has_diffusers_bits(changes: dict[str, Any], steps: int, dtype: torch.dtype) -> None:
    scheduler, theirs = scheduler_with(**changes), scheduler_with(**changes)
    for one in (scheduler, theirs):
        one.set_timesteps(steps, device=CPU)
    theirs.set_begin_index(0)
    unipc = FlowUniPC(scheduler, CPU)
    ours = expected = draw(0, torch.float32)
    for step, t in enumerate(theirs.timesteps):
        velocity = draw(step + 1, dtype)
        expected = theirs.step(velocity, t, expected, return_dict=False)[0]
        ours = unipc(velocity, ours)
        assert torch.equal(expected.view(torch.int32), ours.view(torch.int32)), f"step {step}"
    assert torch.isfinite(ours).all()
    assert scheduler.step_index is None, "the scheduler is read, and never written to"


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        (None, {}),
        ("solver_order 3", {"solver_order": 3}),
        ("solver_type 'bh1'", {"solver_type": "bh1"}),
        ("prediction_type 'epsilon'", {"prediction_type": "epsilon"}),
        ("thresholding True", {"thresholding": True}),
        ("without its corrector", {"disable_corrector": [0]}),
    ],
    ids=str,
)
def test_another_form_is_rejected_by_name(expected: str | None, changes: dict[str, Any]) -> None:
    reason = reject_reason(scheduler_with(**changes))
    assert (reason is None) if expected is None else (reason is not None and expected in reason)


def test_another_scheduler_and_a_replaced_step_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    assert "FlowMatchEulerDiscreteScheduler" in str(reject_reason(FlowMatchEulerDiscreteScheduler()))
    scheduler = scheduler_with()
    monkeypatch.setattr(scheduler, "step", lambda *_: None, raising=False)
    assert "one step was replaced" in str(reject_reason(scheduler))
