"""Mounting: switching a family's fast paths on, all or none, and off again.

A mount replaces ``forward`` on the chosen modules of one transformer and puts the originals back when it is unmounted,
also on an exception. It works on the pipeline object itself, so native loops and diffusers' own ``__call__`` both see
it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import ModuleType, TracebackType
from typing import Any

from fuseproof.errors import UsageError
from fuseproof.fastpaths.gates import Gate, GateMode
from fuseproof.fastpaths.hoisting import HeldResults
from fuseproof.fastpaths.replacements import Replacement
from fuseproof.fastpaths.sites import longcat_image

QUALITIES = ("lossless", "extra-high", "high")
QUALITY_ALIASES = {"exact": "lossless"}
FAMILY_SITES: dict[str, ModuleType] = {longcat_image.TRANSFORMER_CLASS: longcat_image}
_MOUNT_ATTRIBUTE = "_fuseproof_mount"


def mount(
    pipe: Any, *, quality: str = "lossless", sites: str | Iterable[str] = "auto", gate: str | GateMode = "enforce"
) -> Mount:
    """Switch fast paths on for ``pipe.transformer`` and return the mount; use it as a context manager or ``unmount``.

    ``quality`` is ``lossless`` (alias ``exact``), ``extra-high`` or ``high``; ``sites`` is ``auto`` (all that this
    quality permits), ``off``, or names; ``gate`` is ``enforce``, ``observe`` or ``off``. Unknown names, and a second
    mount on the same transformer, raise :class:`UsageError`. A transformer that no site knows is left alone, and the
    report says why.

    While mounted, weights may be changed in any way that PyTorch counts (``copy_``, ``load_state_dict``, ``to``); one
    that it does not count, an in-place write into ``tensor.data``, belongs between requests, or after ``unmount``.
    """
    transformer = getattr(pipe, "transformer", None)
    if transformer is None:
        raise UsageError(
            f"{type(pipe).__name__} has no transformer to mount fast paths on.",
            next_step="Pass a diffusers pipeline object.",
        )
    if getattr(transformer, _MOUNT_ATTRIBUTE, None) is not None:
        raise UsageError(
            "fast paths are already mounted on this transformer.", next_step="Call unmount() on the first mount."
        )
    family = FAMILY_SITES.get(type(transformer).__name__)
    chosen = choose_sites(family, _quality_level(quality), sites)
    mounted = Mount(pipe, family, chosen, requested=_requested_text(sites), quality=quality, mode=_gate_mode(gate))
    mounted.install()
    return mounted


def choose_sites(family: ModuleType | None, quality: str, sites: str | Iterable[str]) -> tuple[str, ...]:
    """The site names that ``sites`` asks for and ``quality`` permits, in the family's order."""
    known: tuple[str, ...] = family.SITES if family else ()
    names = sites.split(",") if isinstance(sites, str) else sites
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"sites is {sites!r}; it is auto, off, or names of fast paths.",
            next_step="Use auto, off, or a list of names.",
        )
    if sites == "off" or not known:
        return ()
    qualities: dict[str, str] = family.QUALITY_OF_SITE if family else {}
    permitted = tuple(name for name in known if QUALITIES.index(qualities[name]) <= QUALITIES.index(quality))
    if sites == "auto":
        return permitted
    asked = [name.strip() for name in names if name.strip()]
    for name in asked:
        if name not in known:
            raise UsageError(
                f"unknown fast path {name!r}; this family has {', '.join(known)}.",
                next_step="Use auto, off, or names from that list separated by commas.",
            )
        if name not in permitted:
            raise UsageError(f"fast path {name!r} needs --quality {qualities[name]}, not {quality}.")
    return tuple(name for name in known if name in asked)


class Mount:
    """The fast paths of one pipeline while they are switched on. ``report()`` stays readable after ``unmount()``."""

    def __init__(
        self,
        pipe: Any,
        family: ModuleType | None,
        sites: tuple[str, ...],
        *,
        requested: str,
        quality: str,
        mode: GateMode,
    ) -> None:
        self.requested = requested
        self.quality = quality
        self.mode = mode
        self.gates = {name: Gate(name, mode) for name in sites}
        self.declined: str | None = None
        self._pipe = pipe
        self._transformer = pipe.transformer
        self._family = family
        self._held: list[HeldResults] = []
        self._replacements: list[Replacement] = []
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
        """Replace the forwards. A family that declines, or no chosen site, leaves the model untouched."""
        if not self.gates:
            return
        family = self._family
        assert family is not None, "sites are only chosen for a known family"
        self.declined = family.reject_reason(self._transformer)
        if self.declined is not None:
            return
        call = family.CurrentCall()
        for hoist in family.hoists(self._transformer, tuple(self.gates)):
            held = HeldResults()
            self._held.append(held)
            make = functools.partial(family.hoisted_forward, hoist, call, self.gates[hoist.site], held)
            self._replacements.append(Replacement(hoist.module, make))
        watch = functools.partial(family.watched_forward, call)
        self._replacements.append(Replacement(self._transformer, watch))
        setattr(self._transformer, _MOUNT_ATTRIBUTE, self)

    def end_request(self) -> None:
        """Drop everything held for the request that just ended; without it, the last few results stay alive."""
        for held in self._held:
            held.clear()

    def restart_counting(self) -> None:
        """Count calls from here on; verified and rejected keys, and first-sight time, stay."""
        for gate in self.gates.values():
            gate.restart_counting()

    def unmount(self) -> None:
        """Put every original back and drop what is held. Doing it twice is harmless.

        Where somebody replaced a forward after us (an offload or casting hook), theirs stays, over the original.
        """
        for replacement in reversed(self._replacements):
            replacement.take_off()
        self._replacements.clear()
        self._ended = True
        self.end_request()
        if getattr(self._transformer, _MOUNT_ATTRIBUTE, None) is self:
            delattr(self._transformer, _MOUNT_ATTRIBUTE)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of the model is not mounted."""

    def report(self) -> dict[str, Any]:
        """Per site: state, reason, calls fused and eager, first-sight and JIT milliseconds, as in a perf dump."""
        known: tuple[str, ...] = self._family.SITES if self._family else ()
        kind = type(self._transformer).__name__
        return {
            "requested": self.requested,
            "quality": self.quality,
            "gate": str(self.mode),
            "reason": None if self._family else f"no fast path knows {kind}; {', '.join(FAMILY_SITES)} has some",
            "sites": {name: self._site_report(name) for name in known},
        }

    def _site_report(self, name: str) -> dict[str, Any]:
        gate = self.gates.get(name)
        if gate is None:
            return _site("off", "not requested", Gate(name))
        if self.declined is not None:
            return _site("declined", self.declined, gate)
        if gate.rejections:
            reasons = sorted({rejection.reason for rejection in gate.rejections.values()})
            return _site("rejected", f"{len(gate.rejections)} key(s): {'; '.join(reasons)}", gate)
        if gate.observed is not None:
            observed = gate.observed
            reason = f"observed: {observed.differing_share:.4%} differ, by at most {observed.largest_ulp} ulp"
            return _site("observed", reason, gate)
        if gate.calls_fused:
            return _site("fused", None, gate)
        if gate.calls_eager:
            return _site(
                "eager",
                "nothing came twice: one step, one branch, gradients on, or a new timestep tensor for each branch",
                gate,
            )
        return _site("unreached", "no call reached this site", gate)


def _site(state: str, reason: str | None, gate: Gate) -> dict[str, Any]:
    return {
        "state": state,
        "reason": reason,
        "calls_fused": gate.calls_fused,
        "calls_eager": gate.calls_eager,
        "verified_keys": gate.verified_keys(),
        "first_sight_ms": round(gate.first_sight_ms, 3),
        "jit_ms": round(gate.jit_ms, 3),
    }


def _requested_text(sites: str | Iterable[str]) -> str:
    return sites if isinstance(sites, str) else ",".join(sites)


def _quality_level(quality: str) -> str:
    level = QUALITY_ALIASES.get(quality, quality) if isinstance(quality, str) else None
    if level not in QUALITIES:
        raise UsageError(
            f"quality {quality!r} is not one of exact, {', '.join(QUALITIES)}.", next_step="Use lossless, the default."
        )
    return level


def _gate_mode(gate: str | GateMode) -> GateMode:
    try:
        return GateMode(gate)
    except ValueError:
        raise UsageError(
            f"gate mode {gate!r} is not one of {', '.join(GateMode)}.", next_step="Use enforce, the default."
        ) from None
