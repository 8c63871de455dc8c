"""That nothing in a profile is counted twice or left out: its sums are formed again."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fuseproof.errors import FuseproofError
from fuseproof.harness.profiles.profile import Profile, Stage

ABSOLUTE_US = 0.5
RELATIVE = 1e-6


def refuse_wrong_sums(profile: Profile, next_step: str) -> None:
    """Raise :class:`FuseproofError` for the first sum that does not hold."""
    for problem in _problems(profile):
        raise FuseproofError(
            f"{profile.source}: {problem}; the file was edited, or something in it is counted twice.",
            next_step=next_step,
        )


def _problems(profile: Profile) -> Iterator[str]:
    for stage in profile.stages:
        yield from _of_stage(profile, stage)
    total = math.fsum(stage.device_us for stage in profile.stages)
    if _differ(profile.attribution.device_us, total):
        told = _us(profile.attribution.device_us)
        yield f"attribution.device_us is {told}, and the stages add up to {_us(total)}"
    loose = math.fsum(device_us for _, device_us in profile.attribution.unattributed)
    if loose > total + ABSOLUTE_US + RELATIVE * total:
        yield f"unattributed kernels add up to {_us(loose)}, more than the {_us(total)} of all stages"


def _of_stage(profile: Profile, stage: Stage) -> Iterator[str]:
    rows = profile.rows_of(stage)
    summed = math.fsum(row.device_us for row in rows)
    if _differ(summed, stage.device_us):
        yield f"the rows of {stage.name!r} add up to {_us(summed)}, and the stage says {_us(stage.device_us)}"
    calls = sum(row.calls for row in rows)
    if calls != stage.kernels:
        yield f"the rows of {stage.name!r} hold {calls} {profile.kernels_word}, and the stage says {stage.kernels}"
    for chain in profile.chains:
        if chain.stage == stage.name and chain.device_us_per_step * stage.steps > stage.device_us * (1 + 1e-3) + 0.5:
            yield f"a chain of {stage.name!r} takes {_us(chain.device_us_per_step)} a step, more than the stage has"
    steps = [step for step in profile.steps if step.stage == stage.name]
    if not steps and stage.steps == 1:
        return  # one whole pass, which has no steps
    if len(steps) != stage.steps:
        yield f"{len(steps)} steps of {stage.name!r} are listed, and the stage says {stage.steps}"
    summed = math.fsum(step.device_us for step in steps)
    if _differ(summed, stage.device_us):
        yield f"the steps of {stage.name!r} add up to {_us(summed)}, and the stage says {_us(stage.device_us)}"
    kernels = sum(step.kernels for step in steps)
    if kernels != stage.kernels:
        yield f"the steps of {stage.name!r} hold {kernels} {profile.kernels_word}, and the stage says {stage.kernels}"


def _differ(one: float, other: float) -> bool:
    return not abs(one - other) <= ABSOLUTE_US + RELATIVE * max(abs(one), abs(other))


def _us(value: float) -> str:
    return f"{value:.1f} us"
