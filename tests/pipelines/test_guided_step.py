"""The end of a step follows the scheduler, whatever was done to it: its own step, and a reason by name."""

from types import SimpleNamespace

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.kernels import guidance_step
from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.pipelines.guided_step import GuidedStep

REQUEST = SimpleNamespace(guidance_scale=4.5, enable_cfg_renorm=False, cfg_renorm_min=0.0)
KERNEL = SimpleNamespace(
    reference=guidance_step.reference, fused=guidance_step.reference, reject_reason=lambda *_: None
)


class Mounted:
    """A mount with the loop's site alone; the reference stands in for the kernel."""

    def __init__(self):
        self.gate = Gate("guidance_step")

    def operation(self, name):
        return GatedOperation(name, KERNEL, self.gate)


@torch.no_grad()
def loop(scheduler, mounted, between=lambda index: None):
    generator = torch.Generator().manual_seed(0)
    scheduler.set_timesteps(3)
    advance = GuidedStep(scheduler, REQUEST, mounted)
    latents = torch.randn(1, 5, 64, generator=generator).bfloat16()
    for index, t in enumerate(scheduler.timesteps):
        between(index)
        velocities = [torch.randn(1, 5, 64, generator=generator).bfloat16() for _ in range(2)]
        latents = advance(*velocities, t, latents)
    return latents.view(torch.int16)


def on_the_instance(scheduler, patch):
    eager = scheduler.step
    scheduler.step = lambda *args, **kwargs: (eager(*args, **kwargs)[0] * 0.5,)
    return scheduler


def on_the_class(scheduler, patch):
    eager = FlowMatchEulerDiscreteScheduler.step
    patch.setattr(
        FlowMatchEulerDiscreteScheduler, "step", lambda self, *args, **kwargs: (eager(self, *args, **kwargs)[0] * 0.5,)
    )
    return scheduler


class Half(FlowMatchEulerDiscreteScheduler):
    def step(self, *args, **kwargs):
        return (super().step(*args, **kwargs)[0] * 0.5,)


class SameName(Half):
    pass


SameName.__name__ = "FlowMatchEulerDiscreteScheduler"

SCHEDULERS = {
    "FlowMatchEulerDiscreteScheduler, of which one step was replaced": on_the_instance,
    "FlowMatchEulerDiscreteScheduler, whose step was replaced (by": on_the_class,
    "the scheduler is Half; the kernel does the step of": lambda scheduler, patch: Half(),
    "no class of torch or diffusers": lambda scheduler, patch: SameName(),
    "the scheduler is FlowMatchHeunDiscreteScheduler": lambda scheduler, patch: FlowMatchHeunDiscreteScheduler(),
    "samples stochastically": lambda scheduler, patch: FlowMatchEulerDiscreteScheduler(stochastic_sampling=True),
}


@pytest.mark.parametrize("reason", SCHEDULERS)
def test_another_step_than_eulers_is_the_schedulers_own(monkeypatch, reason):
    scheduler = SCHEDULERS[reason](FlowMatchEulerDiscreteScheduler(), monkeypatch)
    torch.manual_seed(0)
    expected = loop(scheduler, None)
    mounted = Mounted()
    torch.manual_seed(0)
    assert torch.equal(expected, loop(scheduler, mounted))
    assert 0 == mounted.gate.calls_fused
    assert [True] == [reason in found for found in mounted.gate.declined]


def test_a_plain_scheduler_runs_fused():
    mounted = Mounted()
    expected = loop(FlowMatchEulerDiscreteScheduler(), None)
    assert torch.equal(expected, loop(FlowMatchEulerDiscreteScheduler(), mounted))
    assert (3, 0) == (mounted.gate.calls_fused, mounted.gate.calls_eager)


def replace_sigmas(scheduler):
    scheduler.sigmas = scheduler.sigmas * 0.5


def write_sigmas(scheduler):
    scheduler.sigmas.mul_(0.5)


@pytest.mark.parametrize("change", [replace_sigmas, write_sigmas])
def test_sigmas_changed_on_the_way_are_seen(change):
    def run(mounted):
        scheduler = FlowMatchEulerDiscreteScheduler()
        return loop(scheduler, mounted, between=lambda index: change(scheduler) if index == 1 else None)

    expected, untouched = run(None), loop(FlowMatchEulerDiscreteScheduler(), None)
    assert not torch.equal(expected, untouched)
    assert torch.equal(expected, run(Mounted()))


def test_a_step_replaced_on_the_way_is_seen(monkeypatch):
    def run(mounted):
        scheduler = FlowMatchEulerDiscreteScheduler()
        return loop(scheduler, mounted, lambda index: on_the_instance(scheduler, None) if index == 2 else None)

    mounted = Mounted()
    assert torch.equal(run(None), run(mounted))
    assert (2, 1) == (mounted.gate.calls_fused, mounted.gate.calls_eager)
