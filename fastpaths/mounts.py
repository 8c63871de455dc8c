"""Mounting: switching a pipeline's fast paths on, all or none per family, and off again.

A mount replaces ``forward`` on the chosen modules of a pipeline's components and puts the originals back when it is
unmounted, also on an exception. It works on the pipeline object itself, so native loops and diffusers' own ``__call__``
both see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any

import torch

from fuseproof.errors import UsageError
from fuseproof.fastpaths.families import family_of
from fuseproof.fastpaths.gates import CallObserver, Gate, GateMode
from fuseproof.fastpaths.installation import GraphTarget, Installation
from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.reports import site_report
from fuseproof.fastpaths.tiers import (
    LOSSLESS,
    QualityInForce,
    approximate_sites,
    gate_for,
    permits,
    quality_level,
    tier_reasons,
)
from fuseproof.fastpaths.user_families import UserFamily, connect_stand_ins, decline_unreachable, user_families
from fuseproof.fastpaths.user_sites import UserSite

COMPONENTS = ("transformer", "vae")
_MOUNT_ATTRIBUTE = "_fuseproof_mount"

Family = ModuleType | UserFamily


@dataclass
class Part:
    """One component of the pipeline and the family of sites that knows it."""

    component: Any
    family: Family
    installation: Installation = field(default_factory=Installation)
    declined: dict[str, str] = field(default_factory=dict)


def mount(
    pipe: Any,
    *,
    quality: str = "lossless",
    sites: str | Iterable[str] = "auto",
    gate: str | GateMode = "enforce",
    verifies_every_call: bool = False,
    certified: Mapping[str, frozenset[str]] | None = None,
    user_sites: Sequence[UserSite] = (),
    call_observers: Mapping[str, CallObserver] | None = None,
    per_request: bool = False,
) -> Mount:
    """Switch fast paths on for ``pipe`` and return the mount; use it as a context manager or ``unmount``.

    ``quality`` is ``lossless`` (alias ``exact``), ``extra-high`` or ``high``; ``sites`` is ``auto`` (all that this
    quality permits), ``off``, or names; ``gate`` is ``enforce``, ``observe`` or ``off``. ``verifies_every_call`` runs
    fused and reference side by side at every call, for untimed checks. ``certified`` maps site names to the text of
    keys that a certificate vouches for. ``user_sites`` are fast paths of your own. ``call_observers`` maps site names
    to functions that are told of every kernel call there. Sites that are not exact are in force until ``unmount``, with
    ``per_request`` only inside ``mounted.at(quality)``. Unknown names, and a second mount on the same component, raise
    :class:`UsageError`. A component that no site knows is left alone, and the report says why.

    While mounted, weights may be changed in any way that PyTorch counts (``copy_``, ``load_state_dict``, ``to``); one
    that it does not count, an in-place write into ``tensor.data``, belongs between requests, or after ``unmount``.
    """
    if getattr(pipe, "transformer", None) is None:
        raise UsageError(
            f"{type(pipe).__name__} has no transformer to mount fast paths on.",
            next_step="Pass a diffusers pipeline object.",
        )
    for name in COMPONENTS:
        if getattr(getattr(pipe, name, None), _MOUNT_ATTRIBUTE, None) is not None:
            raise UsageError(
                f"fast paths are already mounted on this {name}.", next_step="Call unmount() on the first mount."
            )
    built_in = tuple(_parts(pipe))
    parts = (*built_in, *(Part(family.component, family) for family in user_families(pipe, built_in, user_sites)))
    families = [part.family for part in parts]
    level = quality_level(quality)
    chosen = choose_sites(families, level, sites)
    mode = _gate_mode(gate)
    certificates = certified or {}
    gates = {
        name: gate_for(
            name,
            families,
            mode,
            verifies_every_call=verifies_every_call,
            certified=certificates.get(name, frozenset()),
        )
        for name in chosen
    }
    connect_stand_ins(gates, built_in, user_sites)
    for name, observer in (call_observers or {}).items():
        if name in gates:
            gates[name].call_observer = observer
    in_force = QualityInForce(parts, gates, level, per_request=per_request)
    mounted = Mount(pipe, parts, gates, in_force, requested=_requested_text(sites), quality=quality, mode=mode)
    mounted.install()
    return mounted


def choose_sites(families: Iterable[Family], quality: str, sites: str | Iterable[str]) -> tuple[str, ...]:
    """The site names that ``sites`` asks for and ``quality`` permits, with what they require, in order."""
    qualities = {name: family.QUALITY_OF_SITE[name] for family in families for name in family.SITES}
    requires = {name: needed for family in families for name, needed in getattr(family, "REQUIRES", {}).items()}
    names = sites.split(",") if isinstance(sites, str) else sites
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"sites is {sites!r}; it is auto, off, or names of fast paths.",
            next_step="Use auto, off, or a list of names.",
        )
    if sites == "off" or not qualities:
        return ()
    permitted = tuple(name for name in qualities if permits(quality, qualities[name]))
    if sites == "auto":
        return permitted
    asked = [name.strip() for name in names if name.strip()]
    for name in asked:
        if name not in qualities:
            raise UsageError(
                f"unknown fast path {name!r}; this model has {', '.join(qualities)}.",
                next_step="Use auto, off, or names from that list separated by commas.",
            )
        if name not in permitted:
            raise UsageError(f"fast path {name!r} needs --quality {qualities[name]}, not {quality}.")
    wanted = set(asked)
    while missing := {requires[name] for name in wanted if name in requires} - wanted:
        wanted |= missing
    return tuple(name for name in qualities if name in wanted)


class Mount:
    """The fast paths of one pipeline while they are switched on. ``report()`` stays readable after ``unmount()``.

    ``epoch`` differs between any two mounts of a process, and between the qualities of one: a CUDA graph keyed by it
    never outlives what it captured.
    """

    def __init__(
        self,
        pipe: Any,
        parts: tuple[Part, ...],
        gates: dict[str, Gate],
        in_force: QualityInForce,
        *,
        requested: str,
        quality: str,
        mode: GateMode,
    ) -> None:
        self.requested = requested
        self.quality = quality
        self.mode = mode
        self.gates = gates
        self._in_force = in_force
        self._pipe = pipe
        self._parts = parts
        self._ended = False

    def __enter__(self) -> Mount:
        if self._ended:
            raise UsageError("this mount has ended.", next_step="Call mount(pipe) again.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unmount()

    def install(self) -> None:
        """Replace the forwards. A family that declines, or no chosen site, leaves its component untouched."""
        try:
            for part in reversed(self._parts):  # sites of one's own first: the built-in ones decline around them
                self._install(part)
            decline_unreachable(self._parts, self.gates)
            self._in_force.start()
        except BaseException:
            self.unmount()
            raise

    @property
    def epoch(self) -> int:
        """Changes with what is in force; see the class."""
        return self._in_force.epoch

    def at(self, quality: str) -> AbstractContextManager[None]:
        """Within this context, and in this thread only, the approximate sites that ``quality`` permits are in force.

        At most the quality that was mounted for; ``lossless`` takes them all out. Exact sites stay as they are.
        """
        if self._ended:
            raise UsageError("this mount has ended.", next_step="Call mount(pipe) again.")
        return self._in_force.at(quality)

    def approximate_sites_that_ran(self) -> tuple[str, ...]:
        """The sites, not exact ones, with at least one call since counting began."""
        return tuple(
            name
            for part in self._parts
            for name in approximate_sites(part.family)
            if name in self.gates and self.gates[name].calls_fused
        )

    def operation(self, name: str) -> GatedOperation | None:
        """The gated operation that a native loop calls itself, such as ``guidance_step``; None where it is off."""
        if name not in self.gates or self._ended:
            return None
        for part in self._parts:
            if name in getattr(part.family, "LOOP_OPERATIONS", ()) and name not in part.declined:
                operation: GatedOperation = part.family.loop_operation(name, self.gates[name])
                return operation
        return None

    def announce_steps(self, timesteps: Sequence[torch.Tensor]) -> None:
        """Tell the sites which tensors the coming transformer calls will get as ``timestep``, one a step.

        A loop that knows its steps may do so; what depends on the step alone is then computed for all of them at once.
        """
        for part in self._parts:
            if part.installation.announce_steps is not None and not self._ended:
                part.installation.announce_steps(timesteps)

    def graph_target(self) -> GraphTarget | None:
        """What a CUDA graph of the transformer should capture; None: the transformer's own forward."""
        targets = [part.installation.graph_target for part in self._parts if part.installation.graph_target]
        return targets[0] if targets and not self._ended else None

    def end_request(self) -> None:
        """Drop everything held for the request that just ended; without it, the last few results stay alive."""
        for part in self._parts:
            for held in part.installation.held:
                held.clear()

    def restart_counting(self) -> None:
        """Count calls from here on; verified and rejected keys, and first-sight time, stay."""
        for gate in self.gates.values():
            gate.restart_counting()

    def fused_calls(self) -> dict[str, int]:
        """Fused calls so far, by site."""
        return {name: gate.calls_fused for name, gate in self.gates.items()}

    def add_fused_calls(self, calls: Mapping[str, int]) -> None:
        """Count the calls that a replayed graph made: those of its capture, once more."""
        for name, number in calls.items():
            self.gates[name].calls_fused += number

    def first_sights(self) -> tuple[int, float]:
        """How many first sights there were, and their milliseconds; inside a timed request they are a fault."""
        gates = self.gates.values()
        return sum(gate.first_sights for gate in gates), sum(gate.first_sight_ms for gate in gates)

    def unmount(self) -> None:
        """Put every original back and drop what is held. Doing it twice is harmless.

        Where somebody replaced a forward after us (an offload or casting hook), theirs stays, over the original.
        """
        for part in self._parts:
            for replacement in reversed(part.installation.replacements):
                replacement.take_off()
            part.installation = Installation(held=part.installation.held)  # drops what it made, quantised weights too
            if getattr(part.component, _MOUNT_ATTRIBUTE, None) is self:
                delattr(part.component, _MOUNT_ATTRIBUTE)
        self._ended = True
        self.end_request()

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of the model is not mounted."""

    def report(self) -> dict[str, Any]:
        """Per site: state, reason, calls fused and eager, first-sight and JIT milliseconds, as in a perf dump."""
        kind = type(self._pipe.transformer).__name__
        knows_transformer = family_of(self._pipe.transformer) is not None
        return {
            "requested": self.requested,
            "quality": self.quality,
            "gate": str(self.mode),
            "reason": None if knows_transformer else f"no fast path knows {kind}",
            "sites": {
                name: site_report(
                    name, self.gates.get(name), part.declined.get(name), self._in_force.taken_over(part).get(name)
                )
                for part in self._parts
                for name in part.family.SITES
                if permits(self._in_force.permitted, part.family.QUALITY_OF_SITE[name])
            },
        }

    def _install(self, part: Part) -> None:
        family = part.family
        gates = {name: self.gates[name] for name in family.SITES if name in self.gates}
        if not gates:
            return
        reason = family.reject_reason(part.component)
        part.declined = dict.fromkeys(gates, reason) if reason else family.site_reasons(part.component)
        part.declined |= tier_reasons(family, gates, part.declined)
        exact = {name: gate for name, gate in gates.items() if family.QUALITY_OF_SITE[name] == LOSSLESS}
        able = {name: gate for name, gate in exact.items() if name not in part.declined or gate.is_heard}
        if reason or not able:
            return
        part.installation = family.install(part.component, able)
        setattr(part.component, _MOUNT_ATTRIBUTE, self)


def _parts(pipe: Any) -> Iterator[Part]:
    for name in COMPONENTS:
        component = getattr(pipe, name, None)
        family = family_of(component)
        if family is not None:
            yield Part(component, family)


def _requested_text(sites: str | Iterable[str]) -> str:
    return sites if isinstance(sites, str) else ",".join(sites)


def _gate_mode(gate: str | GateMode) -> GateMode:
    try:
        return GateMode(gate)
    except ValueError:
        raise UsageError(
            f"gate mode {gate!r} is not one of {', '.join(GateMode)}.", next_step="Use enforce, the default."
        ) from None
