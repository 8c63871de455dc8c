"""Mounting: switching a pipeline's fast paths on, all or none per family, and off again.

A mount replaces ``forward`` on the chosen modules of a pipeline's components and puts the originals back when it is
unmounted, also on an exception. It works on the pipeline object itself, so native loops and diffusers' own ``__call__``
both see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fuseproof.errors import UsageError
from fuseproof.fastpaths.compilation import outside_of_compilation
from fuseproof.fastpaths.families import family_of
from fuseproof.fastpaths.gates import CallObserver, GateMode
from fuseproof.fastpaths.mounted import COMPONENTS, MOUNT_ATTRIBUTE, Family, Mount, Part
from fuseproof.fastpaths.tiers import QualityInForce, gate_for, permits, quality_level
from fuseproof.fastpaths.user_families import connect_stand_ins, user_families
from fuseproof.fastpaths.user_sites import UserSite


@outside_of_compilation
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
    that it does not count, an in-place write into ``tensor.data`` or into a NumPy array behind a tensor, belongs
    between requests, or after ``unmount``. Views of weights (``detach()``) taken before do not follow a weight through
    mount and unmount. Anything else that is changed about the model makes its sites decline until it is undone.
    Inside a function that torch.compile traces, mounting is a break in the graph, and nothing of it is compiled.
    """
    if getattr(pipe, "transformer", None) is None:
        raise UsageError(
            f"{type(pipe).__name__} has no transformer to mount fast paths on.",
            next_step="Pass a diffusers pipeline object.",
        )
    for name in COMPONENTS:
        if getattr(getattr(pipe, name, None), MOUNT_ATTRIBUTE, None) is not None:
            raise UsageError(
                f"fast paths are already mounted on this {name}.", next_step="Call unmount() on the first mount."
            )
    built_in = tuple(_parts(pipe))
    parts = (*built_in, *(Part(pipe.transformer, family) for family in user_families(pipe, built_in, user_sites)))
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
    knows_transformer = family_of(pipe.transformer) is not None
    in_force = QualityInForce(parts, gates, level, per_request=per_request)
    mounted = Mount(
        parts,
        gates,
        in_force,
        requested=_requested_text(sites),
        quality=quality,
        mode=mode,
        reason=None if knows_transformer else f"no fast path knows {type(pipe.transformer).__name__}",
    )
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
    if sites == "off":
        return ()
    permitted = tuple(name for name in qualities if permits(quality, qualities[name]))
    if sites == "auto":
        return permitted
    asked = [name.strip() for name in names if name.strip()]
    for name in asked:
        if name not in qualities:
            raise UsageError(
                f"unknown fast path {name!r}; this model has {', '.join(qualities) or 'none'}.",
                next_step="Use auto, off, or names from that list separated by commas." if qualities else "Use auto.",
            )
        if name not in permitted:
            raise UsageError(f"fast path {name!r} needs --quality {qualities[name]}, not {quality}.")
    wanted = set(asked)
    while missing := {requires[name] for name in wanted if name in requires} - wanted:
        wanted |= missing
    return tuple(name for name in qualities if name in wanted)


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
