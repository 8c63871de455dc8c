"""Which names ``verify``, ``bench`` and ``task`` take, asked of docstrings alone: a mistake costs no import."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fuseproof.cli.fastpaths_guide import Guide, read_guide
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.fastpaths.user_sites import UserSites


def check_site_names(wanted: Sequence[str], own: UserSites | None, flag: str = "--site") -> None:
    """Refuse a name that is no site with a kernel, no kernel, and none of one's own: a :class:`UsageError`."""
    if not wanted:
        return
    guide = read_guide()
    known = guide.names_with_kernels() + tuple(_own_names(own))
    for name in wanted:
        if name not in known:
            raise _refusal(name, guide, known, flag)


def _own_names(own: UserSites | None) -> Iterable[str]:
    return (site.name for site in own.sites) if own is not None else ()


def _refusal(name: str, guide: Guide, known: Sequence[str], flag: str) -> UsageError:
    if name in guide.sites or name in guide.contracts:
        return UsageError(
            f"{flag} {name!r} has no kernel that could be run by itself; {', '.join(sorted(known))} have.",
            next_step=guide.checked_by(name),
        )
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return UsageError(
        f"{flag} {name!r} is no fast path; {', '.join(sorted(known))} have a kernel that can be run by itself.",
        next_step=f"Use {flag} {close[0]}, or name the file that defines {name!r} with --fastpaths-from.",
    )
