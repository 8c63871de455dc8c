"""Two profiles of one request, before and after: launches and device time of a step, by class and by site or module."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.number_format import shortened
from fuseproof.harness.profiles.costs import ClassCost, Cost, by_block, by_class, by_place
from fuseproof.harness.profiles.prediction import Prediction, bandwidth_warning, predict
from fuseproof.harness.profiles.profile import Profile, Stage
from fuseproof.harness.profiles.scatter import Scatter, scatter
from fuseproof.harness.profiles.usual import disturbance_warnings

SCHEMA = "fuseproof.profile-comparison/1"
LONGEST_VALUE = 80
EQUAL_FIELDS = ("model", "family", "weights", "width", "height", "frames", "steps", "guidance", "batch", "dtype")
"""What two profiles must have in common for their difference to be what was changed between them."""
WORK_FLAGS = ("--prompt=", "--prompt-path=", "--negative-prompt=", "--fixed-prompt=", "--image-path=")
"""Flags that decide how long texts and how large inputs are; of profiles that record none nothing is known."""
NEXT_STEP = "Profile both with the same model, size, steps, guidance and dtype on the same device."


@dataclass(frozen=True)
class Difference:
    """One class, site or module of a step; None on the side that does not have it."""

    name: str
    is_site: bool
    before_kernels: float | None
    after_kernels: float | None
    before_us: float | None
    after_us: float | None

    @property
    def saved_us(self) -> float:
        """Device time of one step that is gone; negative where it takes more."""
        return (self.before_us or 0.0) - (self.after_us or 0.0)

    @property
    def change(self) -> float:
        """The same as a share of what it took before; 0 of nothing."""
        return self.saved_us / self.before_us if self.before_us else 0.0

    @property
    def saved_kernels(self) -> float:
        """Launches of one step that are gone."""
        return (self.before_kernels or 0.0) - (self.after_kernels or 0.0)


@dataclass(frozen=True)
class StageDifference:
    """One stage that both profiles have. Every launch of it is in one class and in one place."""

    before: Stage
    after: Stage
    classes: tuple[Difference, ...]
    places: tuple[Difference, ...]
    blocks: tuple[Difference, ...]
    """By block, whoever launched in it: rewritten blocks are held against the modules that they replace."""
    new_fused_kernels: float
    """Launches of one step by sites that ran fused, after minus before."""
    scatter: tuple[Scatter, Scatter]
    """Of the profiled steps, before and after."""

    @property
    def has_scatter(self) -> bool:
        """Whether both sides have steps enough to say how far they lie apart."""
        return all(one.is_known for one in self.scatter)

    @property
    def interval_us(self) -> tuple[float, float]:
        """Device time of one step that is gone, at least and at most by the scatter; of a stage without one both are
        what was seen.
        """
        if not self.has_scatter:
            return self.step.saved_us, self.step.saved_us
        before, after = self.scatter
        return before.least_us - after.most_us, before.most_us - after.least_us

    @property
    def step(self) -> Difference:
        """All launches of one step."""
        one, other = self.before, self.after
        kernels = one.kernels / one.steps, other.kernels / other.steps
        return Difference(one.name, False, *kernels, one.device_us / one.steps, other.device_us / other.steps)

    @property
    def can_tell(self) -> bool:
        """Whether the step's difference is more than the scatter of the steps."""
        low_us, high_us = self.interval_us
        return self.has_scatter and not low_us <= 0 <= high_us

    @property
    def launch_gain_us(self) -> float:
        """What the launches that are gone save of one step where the device waited for them: their share of the time
        that it had nothing to do before. Taken under a profiler, which makes that time longer.
        """
        before = self.before.kernels / self.before.steps
        gone = max(0.0, self.step.saved_kernels)
        return self.before.idle_us / self.before.steps * gone / before if before else 0.0


@dataclass(frozen=True)
class FusedCalls:
    """How often a site ran fused in the whole request and in one profiled step; None where several stages have it."""

    site: str
    before: int
    before_a_step: float | None
    after: int
    after_a_step: float | None


@dataclass(frozen=True)
class ProfileComparison:
    """Two profiles of equal requests."""

    before: Profile
    after: Profile
    stages: tuple[StageDifference, ...]
    """The main stage first."""
    unpaired: tuple[str, ...]
    """Stages that only one of them has."""

    @property
    def main(self) -> StageDifference:
        return self.stages[0]

    @property
    def device_gain_us(self) -> float:
        """Device time of the request that is gone, by the stages that both profiled."""
        return sum(stage.step.saved_us * stage.before.passes_of_request for stage in self.stages)

    @property
    def launch_gain_us(self) -> float:
        """At most what fewer launches save of the request besides."""
        return sum(stage.launch_gain_us * stage.before.passes_of_request for stage in self.stages)

    @cached_property
    def prediction(self) -> Prediction:
        """What the profiles say of the request's device time, or why they cannot."""
        return predict(self)

    def warnings(self) -> tuple[str, ...]:
        """What a reader must know first: each side's own warnings, and what speaks against comparing them."""
        sides = (("before", self.before), ("after", self.after))
        own = (f"{name}: {text}" for name, one in sides for text in (*one.warnings, *disturbance_warnings(one)))
        return (*bandwidth_warning(self.before, self.after), *own)

    def fused_calls(self) -> tuple[FusedCalls, ...]:
        """The sites that ran fused in either, by name as the profiles list them."""
        names = dict.fromkeys((*self.before.by_site, *self.after.by_site))
        found = (FusedCalls(name, *_calls(self.before, name), *_calls(self.after, name)) for name in names)
        return tuple(one for one in found if one.before or one.after)


def compare_profiles(before: Profile, after: Profile) -> ProfileComparison:
    """Pair the stages of two profiles; raises :class:`FuseproofError` where their requests are not equal."""
    refuse_unequal(before, after)
    names = [name for name in before.by_stage if name in after.by_stage]
    main = before.main_stage.name if before.main_stage.name in names else (names[0] if names else None)
    if main is None:
        raise FuseproofError(
            f"{before.source} has the stages {', '.join(before.by_stage)}, and {after.source} "
            f"{', '.join(after.by_stage)}: none in common.",
            next_step="Profile both with the same flags.",
        )
    ordered = [main, *(name for name in names if name != main)]
    unpaired = tuple(name for name in dict.fromkeys((*before.by_stage, *after.by_stage)) if name not in names)
    return ProfileComparison(before, after, tuple(_stage(before, after, name) for name in ordered), unpaired)


def refuse_unequal(before: Profile, after: Profile) -> None:
    """Raise for the first thing that makes two profiles those of different work or of different devices."""
    for name in EQUAL_FIELDS:
        one, other = getattr(before.request, name), getattr(after.request, name)
        if one != other and not (name == "dtype" and None in (one, other)):
            raise FuseproofError(
                f"the requests are unequal: {name} is {one} before and {other} after.", next_step=NEXT_STEP
            )
    for flag in WORK_FLAGS:
        one, other = _given(before, flag), _given(after, flag)
        if one != other and before.request.flags and after.request.flags:
            raise FuseproofError(
                f"the requests are unequal: {flag.rstrip('=')} is {one} before and {other} after.", next_step=NEXT_STEP
            )
    for name in ("kind", "name"):
        one, other = getattr(before.device, name), getattr(after.device, name)
        if one != other:
            raise FuseproofError(
                f"the profiles are of two devices: {one} before and {other} after.", next_step=NEXT_STEP
            )


def _given(profile: Profile, flag: str) -> str:
    values = [word.removeprefix(flag) for word in profile.request.flags if word.startswith(flag)]
    return shortened(", ".join(values), LONGEST_VALUE) or "not given"


def as_json(comparison: ProfileComparison) -> dict[str, Any]:
    """Strict JSON values; times are microseconds of one step, gains those of the whole request."""
    return {
        "schema": SCHEMA,
        "before": comparison.before.raw["request"],
        "after": comparison.after.raw["request"],
        "device": {"before": comparison.before.raw["device"], "after": comparison.after.raw["device"]},
        "stages": [
            {
                "name": stage.before.name,
                "steps_of_request": stage.before.steps_of_request,
                "step": _row_json(stage.step),
                "steps_us": dict(zip(("before", "after"), map(asdict, stage.scatter), strict=True)),
                "saved_us_interval": list(stage.interval_us) if stage.has_scatter else None,
                "classes": [_row_json(row) for row in stage.classes],
                "blocks": [_row_json(row) for row in stage.blocks],
                "places": [_row_json(row) for row in stage.places],
                "new_fused_kernels": stage.new_fused_kernels,
                "launch_gain_us": stage.launch_gain_us,
            }
            for stage in comparison.stages
        ],
        "unpaired_stages": list(comparison.unpaired),
        "fused_calls": [asdict(site) for site in comparison.fused_calls()],
        "predicted": comparison.prediction.to_json(),
        "warnings": list(comparison.warnings()),
    }


def _row_json(row: Difference) -> dict[str, Any]:
    return asdict(row) | {"saved_us": row.saved_us, "saved_kernels": row.saved_kernels}


def _stage(before: Profile, after: Profile, name: str) -> StageDifference:
    one, other = before.by_stage[name], after.by_stage[name]
    classes = _paired(_classes(before, one), _classes(after, other))
    places = _paired(_places(before, one), _places(after, other))
    fused = _fused_kernels(after, other) - _fused_kernels(before, one)
    blocks = _paired(_blocks(before, one), _blocks(after, other))
    return StageDifference(one, other, classes, places, blocks, fused, (scatter(before, one), scatter(after, other)))


Key = tuple[str, bool, str]
Sides = dict[Key, tuple[float, float]]


def _classes(profile: Profile, stage: Stage) -> Sides:
    return {(cost.name, False, ""): _numbers(cost) for cost in by_class(profile.rows_of(stage), stage.steps)}


def _places(profile: Profile, stage: Stage) -> Sides:
    return {(cost.name, cost.is_site, cost.component): _numbers(cost) for cost in by_place(profile, stage)}


def _blocks(profile: Profile, stage: Stage) -> Sides:
    return {(cost.name, False, cost.component): _numbers(cost) for cost in by_block(profile, stage)}


def _numbers(cost: ClassCost | Cost) -> tuple[float, float]:
    return cost.kernels, cost.device_us


def _paired(before: Sides, after: Sides) -> tuple[Difference, ...]:
    found = []
    for key in dict.fromkeys((*before, *after)):
        one, other = before.get(key, (None, None)), after.get(key, (None, None))
        found.append(Difference(key[0], key[1], one[0], other[0], one[1], other[1]))
    return tuple(sorted(found, key=lambda row: (-abs(row.saved_us), row.name)))


def _fused_kernels(profile: Profile, stage: Stage) -> float:
    return sum(row.calls for row in profile.rows_of(stage) if row.site_state == "fused") / stage.steps


def _calls(profile: Profile, name: str) -> tuple[int, float | None]:
    """A site's fused calls in the whole request and in one step; the latter is None where several stages have it, and
    0 where the profiled steps have none, as of what is held for a whole request.
    """
    site = profile.by_site.get(name)
    if site is None or not site.calls_fused:
        return 0, 0.0
    stages = {row.stage for row in profile.rows if row.site == name}
    if not stages and not site.keys:
        return site.calls_fused, 0.0
    if len(stages) > 1 or not site.keys:
        return site.calls_fused, None
    stage = profile.by_stage[stages.pop()] if stages else profile.main_stage
    fused = site.calls_fused / (site.calls_fused + site.calls_eager)
    return site.calls_fused, fused * sum(key.calls for key in site.keys) / stage.steps
