"""That nothing in a profile is counted twice or left out: its sums are formed again."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fuseproof.errors import FuseproofError
from fuseproof.harness.profiles.profile import Chain, Profile, Row, Stage

ABSOLUTE_US = 0.5
RELATIVE = 1e-6
SHARE = 1e-6
PIPELINE = "pipeline"


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
    for number, row in enumerate(profile.rows):
        yield from _of_row(row, profile.by_stage[row.stage].steps, number)
    for chain in profile.chains:
        yield from _of_chain(chain)
    yield from _of_sites(profile)
    total = math.fsum(stage.device_us for stage in profile.stages)
    yield from _of_shares(profile, total)
    if _differ(profile.attribution.device_us, total):
        told = _us(profile.attribution.device_us)
        yield f"attribution.device_us is {told}, and the stages add up to {_us(total)}"
    loose = math.fsum(device_us for _, device_us in profile.attribution.unattributed)
    if loose > total + ABSOLUTE_US + RELATIVE * total:
        yield f"unattributed kernels add up to {_us(loose)}, more than the {_us(total)} of all stages"


def _of_row(row: Row, steps: int, number: int) -> Iterator[str]:
    """What a row says of its steps and of its usual time; both are optional."""
    counts = {len(row.calls_by_step), len(row.device_us_by_step)}
    if counts not in ({0}, {steps}):
        yield f"row {number} tells of {' and '.join(map(str, sorted(counts)))} steps, and its stage has {steps}"
        return
    if row.calls_by_step and sum(row.calls_by_step) != row.calls:
        yield f"the steps of row {number} hold {sum(row.calls_by_step)} calls, and the row says {row.calls}"
    summed = math.fsum(row.device_us_by_step)
    if row.device_us_by_step and _differ(summed, row.device_us):
        yield f"the steps of row {number} add up to {_us(summed)}, and the row says {_us(row.device_us)}"
    if row.typical_us is not None and row.typical_us > row.device_us + ABSOLUTE_US + RELATIVE * row.device_us:
        yield f"row {number} typically takes {_us(row.typical_us)}, more than the {_us(row.device_us)} it took"


def _of_chain(chain: Chain) -> Iterator[str]:
    """A saving is what a chain takes beyond its floor, and there is none without a floor."""
    what, floor, told = f"a chain of {chain.stage!r}", chain.fused_floor_us_per_step, chain.saving_us_per_step
    if (floor is None) != (told is None):
        yield f"{what} tells only one of fused_floor_us_per_step and saving_us_per_step"
    elif floor is not None and told is not None and _differ(told, max(0.0, chain.device_us_per_step - floor)):
        own = f"{_us(chain.device_us_per_step)} a step over a floor of {_us(floor)}"
        yield f"{what} takes {own}, and saving_us_per_step is {_us(told)}"
    if _exceeds(chain.typical_us_per_step or 0.0, chain.device_us_per_step):
        yield f"{what} typically takes more than the {_us(chain.device_us_per_step)} a step that it took"


def _of_sites(profile: Profile) -> Iterator[str]:
    """A site's time is that of its rows."""
    for site in profile.sites:
        summed = math.fsum(row.device_us for row in profile.rows if row.site == site.site)
        if _differ(summed, site.device_us or 0.0):
            told = "tells no time" if site.device_us is None else f"says {_us(site.device_us)}"
            yield f"the rows of site {site.site!r} add up to {_us(summed)}, and the site {told}"


def _of_shares(profile: Profile, total: float) -> Iterator[str]:
    """The shares of attribution against the rows, where they follow: a model's own launches have an empty path, as
    those of no module have.
    """
    found = profile.attribution
    lines = math.fsum(row.device_us for row in profile.rows if row.line is not None)
    modules = math.fsum(row.device_us for row in profile.rows if row.module)
    either = math.fsum(row.device_us for row in profile.rows if row.module or row.site is not None or _is_own(row))
    if abs(found.to_line * total - lines) > ABSOLUTE_US + SHARE * total:
        yield f"the rows with a line add up to {_us(lines)}, and attribution.to_line is {found.to_line:.6g}"
    for name, share, least in (
        ("module", found.to_module, modules),
        ("site_or_module", found.to_site_or_module, either),
    ):
        if share * total < least - ABSOLUTE_US - SHARE * total:
            yield f"the rows with a {name} add up to {_us(least)}, and attribution.to_{name} is only {share:.6g}"
    lost = math.fsum(device_us for _, device_us in found.unattributed)
    left = (1 - found.to_site_or_module) * total
    if lost > left + ABSOLUTE_US + SHARE * total:
        yield f"unattributed kernels add up to {_us(lost)}, and attribution.to_site_or_module leaves {_us(left)}"


def _is_own(row: Row) -> bool:
    """Whether the loop itself launched it, in a line that says where it is from."""
    return row.component == PIPELINE and row.line is not None


def _of_stage(profile: Profile, stage: Stage) -> Iterator[str]:
    rows = profile.rows_of(stage)
    summed = math.fsum(row.device_us for row in rows)
    if _differ(summed, stage.device_us):
        yield f"the rows of {stage.name!r} add up to {_us(summed)}, and the stage says {_us(stage.device_us)}"
    calls = sum(row.calls for row in rows)
    if calls != stage.kernels:
        yield f"the rows of {stage.name!r} hold {calls} {profile.kernels_word}, and the stage says {stage.kernels}"
    chained = math.fsum(chain.device_us_per_step for chain in profile.chains if chain.stage == stage.name)
    if _exceeds(chained * stage.steps, stage.device_us):
        yield f"the chains of {stage.name!r} take {_us(chained)} a step, more than the stage has"
    steps = [step for step in profile.steps if step.stage == stage.name]
    if not steps and stage.steps == 1:
        return  # one whole pass, which has no steps
    if len(steps) != stage.steps:
        yield f"{len(steps)} steps of {stage.name!r} are listed, and the stage says {stage.steps}"
    summed = math.fsum(step.device_us for step in steps)
    if _differ(summed, stage.device_us):
        yield f"the steps of {stage.name!r} add up to {_us(summed)}, and the stage says {_us(stage.device_us)}"
    summed = math.fsum(step.wall_us for step in steps)
    if _differ(summed, stage.wall_us):
        yield f"the steps of {stage.name!r} last {_us(summed)}, and the stage says {_us(stage.wall_us)}"
    kernels = sum(step.kernels for step in steps)
    if kernels != stage.kernels:
        yield f"the steps of {stage.name!r} hold {kernels} {profile.kernels_word}, and the stage says {stage.kernels}"


def _exceeds(part: float, whole: float) -> bool:
    return part > whole + ABSOLUTE_US + RELATIVE * whole


def _differ(one: float, other: float) -> bool:
    return not abs(one - other) <= ABSOLUTE_US + RELATIVE * max(abs(one), abs(other))


def _us(value: float) -> str:
    return f"{value:.1f} us"
