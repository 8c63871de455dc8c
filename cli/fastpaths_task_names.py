"""Which kernel ``fastpaths task NAME`` means, and for a site without one, which kernels its model has instead."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from fuseproof.cli.abba_ablate_sites import required_sites
from fuseproof.cli.fastpaths_guide import ROOM, Contract, Guide
from fuseproof.errors import UsageError

CLOSE_NAMES = 4
MOST_NAMES = 8


def contract_of(name: str, guide: Guide) -> Contract:
    """The kernel that ``name`` means: a :class:`UsageError` names the several that a site runs, or those beside it."""
    kernels = [one for one, contract in guide.contracts.items() if contract.has_bits_of_its_own]
    if name in kernels:
        return guide.contracts[name]
    of_site = [one for one in guide.kernels_of(name) if one in kernels] if name in guide.sites else []
    if len(of_site) == 1:
        return guide.contracts[of_site[0]]
    if of_site:
        raise UsageError(
            f"site {name!r} runs several kernels: {', '.join(of_site)}.",
            next_step=f"Name one of them: fuseproof fastpaths task {of_site[0]}",
        )
    if name not in guide.sites and name not in guide.contracts:
        close = difflib.get_close_matches(name, guide.names_with_kernels(), n=CLOSE_NAMES, cutoff=0.0)
        raise UsageError(
            f"{name!r} is no fast path; nearest to it are {', '.join(close)}.",
            next_step="`fuseproof fastpaths list` shows all sites, `fuseproof fastpaths explain NAME` what each does.",
        )
    raise _without_kernel(name, guide, kernels)


def _without_kernel(name: str, guide: Guide, kernels: Sequence[str]) -> UsageError:
    site = name if name in guide.sites else guide.site_of(name)
    inside = _kernels_of(_sites_needing(site, guide), guide, kernels)
    if inside:
        return UsageError(
            f"site {site!r} rewrites whole blocks and has no kernel of its own bits; the kernels that run inside it "
            f"are {_few(inside)}.",
            next_step=f"Name one of them: fuseproof fastpaths task {inside[0]}",
        )
    what = (
        "is close, not exact" if "Close" in guide.contracts.get(name, _first(site, guide)).paragraphs else "runs none"
    )
    beside = _kernels_of(_sites_beside(site, guide), guide, kernels)
    models = f"; kernels of its model are {_few(beside)}" if beside else ""
    step = f"Name a kernel: fuseproof fastpaths task {beside[0]}; or read" if beside else "Read"
    return UsageError(
        f"{name!r} has no kernel of its own bits to hand over: it {what}{models}.",
        next_step=f"{step} what it does: fuseproof fastpaths explain {name}",
    )


def _first(site: str, guide: Guide) -> Contract:
    return guide.contracts[guide.sites[site][0]]


def _kernels_of(sites: Iterable[str], guide: Guide, kernels: Sequence[str]) -> list[str]:
    found = dict.fromkeys(kernel for site in sites for kernel in guide.kernels_of(site))
    return sorted(kernel for kernel in found if kernel in kernels)


def _sites_needing(site: str, guide: Guide, room: Path = ROOM) -> list[str]:
    """The sites that cannot work without this one, of every family."""
    found: dict[str, None] = {}
    for folder in dict.fromkeys(family.folder for family in guide.families):
        path = room / "sites" / folder / "__init__.py"
        if path.is_file():
            required = required_sites(ast.parse(path.read_text(encoding="utf-8")), path)
            found |= dict.fromkeys(one for one, needed in required if needed == site)
    return list(found)


def _sites_beside(site: str, guide: Guide) -> list[str]:
    """The sites of the first model class that has this one."""
    classes = guide.classes_of(site)[:1]
    return [one for one in guide.sites if not set(classes).isdisjoint(guide.classes_of(one))]


def _few(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
