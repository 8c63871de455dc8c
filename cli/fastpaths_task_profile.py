"""What a profile says of one site, as lines for a kernel's task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.errors import FuseproofError
from fuseproof.harness.escape import markdown_code, markdown_text

if TYPE_CHECKING:
    from fuseproof.harness.profiles.profile import Chain, Profile, Row, SiteRecord

ROWS_SHOWN = 20


def measured_lines(path: Path, site: str, kernel: str) -> list[str]:
    """State, calls, device time and bytes of the site, its costliest rows, and the chains that it should replace.

    Markdown, in which nothing that the profile says is markup.

    A :class:`FuseproofError` where the profile knows the site neither by its name nor by its kernel's.
    """
    from fuseproof.harness.profiles.reading import read_profile

    profile = read_profile(path)
    names = (site, kernel)
    sites = [one for one in profile.sites if one.site in names]
    rows = [row for row in profile.rows if row.site in names]
    chains = [chain for chain in profile.chains if chain.fast_path in names]
    if not sites and not rows and not chains:
        known = ", ".join(sorted({one.site for one in profile.sites})) or "none"
        raise FuseproofError(
            f"{path} says nothing of {site!r}; its sites are {known}.", next_step="Drop --from, or name one of these."
        )
    return list(_lines(profile, sites, rows, chains))


def _lines(profile: Profile, sites: list[SiteRecord], rows: list[Row], chains: list[Chain]) -> Iterator[str]:
    request, device = profile.request, markdown_text(profile.device.name)
    yield (
        f"{markdown_text(request.model)}, {request.width}x{request.height}, on {device}; times under a profiler, "
        "never to be compared with timed runs."
    )
    for one in sites:
        yield ""
        state = markdown_text(one.state) + (f" ({markdown_text(one.reason)})" if one.reason else "")
        yield f"Site {one.site}: {state}, {one.calls_fused} calls fused and {one.calls_eager} eager."
    if rows:
        yield from ("", "| stage | kernel | key | calls | device us | bytes a call |", "|---|---|---|--:|--:|--:|")
    for row in sorted(rows, key=lambda row: -row.device_us)[:ROWS_SHOWN]:
        size = "-" if row.bytes is None else f"{row.bytes:,}"
        kernel, key = markdown_code(row.kernel), "-" if row.key is None else markdown_code(row.key)
        yield f"| {markdown_text(row.stage)} | {kernel} | {key} | {row.calls} | {row.device_us:,.1f} | {size} |"
    for chain in chains:
        floor = chain.fused_floor_us_per_step
        yield ""
        yield (
            f"Chain in {markdown_code(chain.module) if chain.module else 'the pipeline'}: "
            f"{' -> '.join(map(markdown_text, chain.operations))} on {markdown_text(chain.shape or '-')}, "
            f"{chain.device_us_per_step:,.1f} us a step"
            + ("" if floor is None else f", {floor:,.1f} us if it moved its outer tensors alone")
            + (f"; not fused: {markdown_text(chain.fast_path_reason)}" if chain.fast_path_reason else "")
            + "."
        )
