"""``fuseproof report --head``: whether the measured code is that of a branch's present head."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.harness.campaign.heads import HeadComparison


def head_comparison(directory: str, head: str | None, repo: str | None) -> HeadComparison | None:
    """The comparison that ``--head`` asks for, None without it; :class:`UsageError` for ``--repo`` alone."""
    from fuseproof.harness.campaign.folder import Campaign
    from fuseproof.harness.campaign.heads import compare_head

    if head is None:
        if repo is not None:
            raise UsageError("--repo says where --head is looked up.", next_step="Add --head REF.")
        return None
    return compare_head(Campaign.open(directory), head, None if repo is None else Path(repo).expanduser(), Path.cwd())
