"""How a mount takes in sites of one's own: as one more family of sites, beside the built-in ones.

A site on modules replaces their forwards, each call through the site's gate. A site in a kernel's place is handed to
the gate of the built-in site that owns the kernel, which passes those calls on to it.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from fuseproof.errors import UsageError
from fuseproof.fastpaths.families import kernels_of_site
from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.installation import Installation, taken_off_if_it_fails
from fuseproof.fastpaths.module_names import matches, names_text
from fuseproof.fastpaths.module_state import call_reason
from fuseproof.fastpaths.operations import GatedOperation, signature
from fuseproof.fastpaths.replacements import Forward, Replacement
from fuseproof.fastpaths.sites.plain_modules import OWN_FAST_PATH
from fuseproof.fastpaths.user_code import tensors_in
from fuseproof.fastpaths.user_operations import UserOperation
from fuseproof.fastpaths.user_sites import UserSite, refuse_duplicates

PLAIN_ARGUMENTS = (torch.Tensor, torch.dtype, torch.device, str, int, float, type(None))


class MountedPart(Protocol):
    """What a mount tells of one component: it, its family, the sites that decline there, and why all of them do."""

    component: Any
    family: Any
    declined: dict[str, str]
    rejected: str | None


class UserFamily:
    """Sites of one's own on the transformer; the same surface as a built-in family's module."""

    COMPONENT = "transformer"
    LOOP_OPERATIONS: tuple[str, ...] = ()

    def __init__(self, sites: Sequence[UserSite], requires: Mapping[str, str]) -> None:
        self.sites = tuple(sites)
        self.SITES = tuple(site.name for site in sites)
        self.QUALITY_OF_SITE = dict.fromkeys(self.SITES, "lossless")
        self.REQUIRES = dict(requires)

    def reject_reason(self, component: Any) -> str | None:
        """Never: what does not fit is a mistake of the file, and raised by :meth:`install`."""
        return None

    def site_reasons(self, component: Any) -> dict[str, str]:
        """None: whether a site's arguments fit is asked call by call."""
        return {}

    def loop_operation(self, name: str, gate: Gate) -> GatedOperation:
        """Never asked: no site of one's own belongs to the loop."""
        raise LookupError(name)

    def install(self, component: Any, gates: Mapping[str, Gate]) -> Installation:
        """Replace the forwards of every module that a chosen site's glob names; a glob without any changes nothing."""
        installation = Installation()
        with taken_off_if_it_fails(installation):
            for site in self.sites:
                if site.modules is None or site.name not in gates:
                    continue
                for name, module in modules_matching(component, site):
                    call = ModuleOperation(site, name, module, gates[site.name])
                    installation.replacements.append(Replacement(module, functools.partial(_forward, call)))
        return installation


class ModuleOperation:
    """One module's forward behind the gate of a site; the module's own forward is the reference."""

    def __init__(self, site: UserSite, name: str, module: nn.Module, gate: Gate) -> None:
        self.name = name
        self.site = site
        self.module = module
        self.gate = gate
        self._own = UserOperation(site, gate, module)

    def run(self, eager: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Fused where the gate has seen the module's own bits for such arguments."""
        if torch.compiler.is_compiling():
            return eager(*args, **kwargs)
        if self.gate.call_observer is not None:
            self.gate.call_observer(self, args, kwargs)
        around = call_reason() or _unreal_reason(args, kwargs)
        if around is not None:
            return self.gate.decline(around, lambda: eager(*args, **kwargs))
        key = (self.name, *map(nested_signature, args), *((name, nested_signature(kwargs[name])) for name in kwargs))
        return self._own.run(key, lambda: eager(*args, **kwargs), args, keywords=kwargs)


def user_families(pipe: Any, parts: Iterable[MountedPart], sites: Sequence[UserSite]) -> Iterator[UserFamily]:
    """The family that holds ``sites``; none without any. Clashing and unknown names are a :class:`UsageError`."""
    if not sites:
        return
    families = [part.family for part in parts]
    refuse_duplicates(sites)
    built_in = {name for family in families for name in family.SITES}
    owners = kernel_owners(families)
    for site in sites:
        if site.name in built_in:
            raise UsageError(f"a site of your own is named {site.name!r}, as a built-in one is; give it another name.")
        if site.replaces is not None and site.replaces not in owners:
            raise UsageError(
                f"site {site.name!r} replaces {site.replaces!r}, which is no kernel of "
                f"{type(pipe.transformer).__name__}; it has {', '.join(owners) or 'none'}.",
                next_step="`fuseproof fastpaths list` shows sites and kernels.",
            )
    requires = {site.name: owners[site.replaces] for site in sites if site.replaces is not None}
    yield UserFamily(sites, requires)


def kernel_owners(families: Iterable[Any]) -> dict[str, str]:
    """Which built-in site each kernel belongs to."""
    return {
        kernel: site for family in families for site, kernels in kernels_of_site(family).items() for kernel in kernels
    }


def connect_stand_ins(gates: Mapping[str, Gate], parts: Iterable[MountedPart], sites: Iterable[UserSite]) -> None:
    """Tell the gate of each built-in site which of its kernels a chosen site of one's own stands in for."""
    owners = kernel_owners(part.family for part in parts)
    for site in sites:
        if site.replaces is not None and site.name in gates:
            gates[owners[site.replaces]].stand_ins[site.replaces] = (site, gates[site.name])


def decline_unreachable(parts: Iterable[MountedPart], gates: Mapping[str, Gate]) -> None:
    """Where the rewrite that a replaced kernel works in declines, so does its stand-in, for the same reason."""
    known = list(parts)
    blocked = {site: reason for part in known for site, reason in _unreachable(part)}
    for part in known:
        if isinstance(part.family, UserFamily):
            stand_ins = part.family.REQUIRES.items()
            part.declined |= {name: blocked[owner] for name, owner in stand_ins if name in gates and owner in blocked}


def displaced(parts: Iterable[MountedPart]) -> list[str]:
    """One sentence for each site of one's own on a module whose forward the built-in sites named there pass by."""
    reasons: dict[str, list[str]] = {}
    for part in parts:
        for site, reason in part.declined.items():
            if OWN_FAST_PATH in reason and not isinstance(part.family, UserFamily):
                reasons.setdefault(reason, []).append(site)
    return [
        f"{', '.join(sites)} declined for the whole run, whatever becomes of the site: {reason}; a site that replaces "
        "a built-in kernel leaves them mounted"
        for reason, sites in reasons.items()
    ]


def _unreachable(part: MountedPart) -> Iterator[tuple[str, str]]:
    """Sites whose kernels nobody would call, and why. That the built-in kernel cannot run here is no such reason."""
    requires = getattr(part.family, "REQUIRES", {})
    of_the_loop = getattr(part.family, "LOOP_OPERATIONS", ())
    for site in part.family.SITES:
        needed = requires.get(site, site)
        is_called_by_name = needed != site or site in of_the_loop
        reason = part.declined.get(needed) if is_called_by_name else part.rejected
        if reason is not None:
            yield site, reason


def modules_matching(component: nn.Module, site: UserSite) -> list[tuple[str, nn.Module]]:
    """The modules that the site's glob names; a :class:`UsageError` shows names near it where it names none."""
    glob, modules = site.modules or "", dict(component.named_modules())
    found = [(name, module) for name, module in modules.items() if name and matches(glob, name)]
    if found:
        return found
    raise UsageError(
        f"modules={site.modules!r} of site {site.name!r} names no module of {type(component).__name__}.",
        next_step=f"{names_text(glob, modules)} * stands for one part of a name, ** for several.",
    )


def nested_signature(argument: Any) -> Hashable:
    """As :func:`signature`, into tuples, lists and dictionaries; what cannot be hashed counts by its text."""
    if isinstance(argument, tuple | list):
        return tuple(map(nested_signature, argument))
    if isinstance(argument, dict):
        return tuple((name, nested_signature(value)) for name, value in argument.items())
    return signature(argument) if isinstance(argument, PLAIN_ARGUMENTS) else repr(argument)


def _unreal_reason(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """A tensor of a call without memory, or of a class whose memory is not its own: no kernel may be given that."""
    for value in tensors_in((args, kwargs)):
        if type(value) not in (torch.Tensor, nn.Parameter):
            return f"called with a {type(value).__name__}; kernels are given plain tensors"
        if value.is_meta:
            return "called with a tensor on the meta device"
    return None


def _forward(call: ModuleOperation, eager: Forward) -> Forward:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return call.run(eager, args, kwargs)

    return forward
