"""Whether a model has the sites that ``--fastpaths NAME,...`` names, asked of docstrings: before any weight is read."""

from __future__ import annotations

import functools
from difflib import get_close_matches
from typing import TYPE_CHECKING

from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.pipelines.family import Family


def refuse_unknown_sites(options: GenerateOptions, family: Family) -> None:
    """Raise :class:`UsageError` for a name that is no site of ``family``; a file of one's own may add any name."""
    if options.effective_fastpaths in ("auto", "off") or options.fastpaths_from is not None:
        return
    known = sites_of(family)
    for name in options.effective_fastpaths.split(","):
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}? If not, use" if close else "Use"
            raise UsageError(
                f"--fastpaths names {name!r}, which {family.title} does not have; it has {', '.join(known) or 'none'}.",
                next_step=f"{hint} auto, off, or names from that list separated by commas.",
            )


def sites_of(family: Family) -> tuple[str, ...]:
    """The names of all sites in the family's components, sorted."""
    return _sites_of_classes(tuple(name for component in family.components.values() for name in component.classes))


@functools.cache
def _sites_of_classes(classes: tuple[str, ...]) -> tuple[str, ...]:
    from fuseproof.cli.fastpaths_guide import read_guide

    guide = read_guide()
    return tuple(sorted(site for site in guide.sites if not set(classes).isdisjoint(guide.classes_of(site))))
