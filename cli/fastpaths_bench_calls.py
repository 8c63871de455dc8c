"""Which calls ``fastpaths bench`` measures: of models, of shapes that the user names, of chosen sites and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuseproof.cli.fastpaths_checks import calls_at, calls_of_models, check_names, names_of

if TYPE_CHECKING:
    import torch

    from fuseproof.fastpaths.tracing import SiteCall
    from fuseproof.fastpaths.user_sites import UserSites


def calls_of(
    model: str | None, shapes: Sequence[tuple[int, ...]], own: UserSites | None, device: torch.device
) -> list[tuple[str, SiteCall]]:
    """Calls with their workload's name: of ``model`` (of every family where None), or at ``shapes``."""
    from fuseproof.pipelines.families import FAMILIES

    if not shapes:
        return calls_of_models((model,) if model else tuple(FAMILIES), own, device)
    name = model or next(iter(FAMILIES))
    return [("x".join(map(str, shape)), call) for shape in shapes for call in calls_at(shape, name, own)]


def chosen(calls: Sequence[tuple[str, SiteCall]], sites: Sequence[str]) -> list[tuple[str, SiteCall]]:
    """Those of ``sites`` (or kernels), where any are named; a :class:`UsageError` for a name that none of them has."""
    check_names(sites, {name for _, call in calls for name in names_of(call)})
    return [(name, call) for name, call in calls if not sites or set(names_of(call)) & set(sites)]
