"""What ``mount`` returns: the fast paths of one pipeline while they are switched on, and their report afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any

import torch

from fuseproof.errors import UsageError
from fuseproof.fastpaths.compilation import outside_of_compilation
from fuseproof.fastpaths.gates import Gate, GateMode
from fuseproof.fastpaths.installation import GraphTarget, Installation
from fuseproof.fastpaths.nesting import sites_inside
from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.reports import site_report
from fuseproof.fastpaths.tiers import LOSSLESS, QualityInForce, approximate_sites, permits, tier_reasons
from fuseproof.fastpaths.user_families import UserFamily, decline_unreachable, displaced

COMPONENTS = ("transformer", "vae")
MOUNT_ATTRIBUTE = "_fuseproof_mount"

Family = ModuleType | UserFamily


@dataclass
class Part:
    """One component of the pipeline and the family of sites that knows it; without a component once unmounted."""

    component: Any
    family: Family
    installation: Installation = field(default_factory=Installation)
    declined: dict[str, str] = field(default_factory=dict)
    rejected: str | None = None


class Mount:
    """The fast paths of one pipeline while they are switched on. ``report()`` stays readable after ``unmount()``,
    which the model need not outlive: nothing of it is held from then on.

    ``reason`` says why no fast path knows the pipeline's transformer.
    ``epoch`` differs between any two mounts of a process, and between the qualities of one: a CUDA graph keyed by it
    never outlives what it captured.
    """

    def __init__(
        self,
        parts: tuple[Part, ...],
        gates: dict[str, Gate],
        in_force: QualityInForce,
        *,
        requested: str,
        quality: str,
        mode: GateMode,
        reason: str | None,
    ) -> None:
        self.requested = requested
        self.quality = quality
        self.mode = mode
        self.reason = reason
        self.gates = gates
        self._in_force = in_force
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
        """Drop everything held for the request that this thread just ended.

        Without it a result lives until the tensors that it came from are gone, or :meth:`unmount`, and so do the steps
        that a loop announced.
        """
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

    @outside_of_compilation
    def unmount(self) -> None:
        """Put every original back and drop what is held, in every thread. Doing it twice is harmless.

        Where somebody replaced a forward after us (an offload or casting hook), theirs stays, over the original. What
        fails at one component keeps no other from it.
        """
        self._ended = True
        self.end_request()
        with ExitStack() as stack:
            for part in reversed(self._parts):  # called last in, first out: what was installed last comes off first
                stack.callback(self._take_off, part)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of the model is not mounted."""

    def report(self) -> dict[str, Any]:
        """Per site: state, reason, calls fused and eager, first-sight and JIT milliseconds, as in a perf dump.

        A site that may differ because of others inside it stands after them.
        """
        inside = self.differed_inside()
        sites = {
            name: site_report(
                name,
                self.gates.get(name),
                part.declined.get(name),
                self._in_force.taken_over(part).get(name),
                inside.get(name, ()),
            )
            for part in self._parts
            for name in part.family.SITES
            if permits(self._in_force.permitted, part.family.QUALITY_OF_SITE[name])
        }
        return {
            "requested": self.requested,
            "quality": self.quality,
            "gate": str(self.mode),
            "reason": self.reason,
            "sites": {name: sites[name] for name in sorted(sites, key=lambda name: len(inside.get(name, ())))},
        }

    def displaced(self) -> list[str]:
        """Which built-in sites decline because a site of one's own lies in what they rewrite: a sentence a cause."""
        return displaced(self._parts)

    def differed_inside(self) -> dict[str, tuple[str, ...]]:
        """By site that differed, under ``observe``: the sites inside it that did as well."""
        families = [part.family for part in self._parts]
        found = {name: sites_inside(name, self.gates, families) for name in self.gates}
        return {name: inside for name, inside in found.items() if inside}

    def _take_off(self, part: Part) -> None:
        installation, component = part.installation, part.component
        part.installation, part.component = Installation(), None
        try:
            installation.take_off()
        finally:
            if getattr(component, MOUNT_ATTRIBUTE, None) is self:
                delattr(component, MOUNT_ATTRIBUTE)

    def _install(self, part: Part) -> None:
        family = part.family
        gates = {name: self.gates[name] for name in family.SITES if name in self.gates}
        if not gates:
            return
        reason = part.rejected = family.reject_reason(part.component)
        part.declined = dict.fromkeys(gates, reason) if reason else family.site_reasons(part.component)
        part.declined |= tier_reasons(family, gates, part.declined)
        exact = {name: gate for name, gate in gates.items() if family.QUALITY_OF_SITE[name] == LOSSLESS}
        able = {name: gate for name, gate in exact.items() if name not in part.declined or gate.is_heard}
        if reason or not able:
            return
        part.installation = family.install(part.component, able)
        setattr(part.component, MOUNT_ATTRIBUTE, self)
