"""What became of each site in the profiled request, and how often it was called with which key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from fuseproof.harness.number_format import MISSING, count, number, shortened
from fuseproof.harness.profiles.profile import Profile, SiteRecord
from fuseproof.harness.profiles.tables import LONGEST_NAME, LONGEST_REASON, code
from fuseproof.harness.report.document import Bullets, Paragraph, Part, Table, Text

NONE_MOUNTED = "No fast path is mounted."


def site_parts(profile: Profile, most: int, *, has_keys: bool) -> Iterator[Part]:
    """State and calls of every site; a reason that several share is told once."""
    if not profile.sites:
        yield Paragraph(NONE_MOUNTED)
        return
    labels = shared_reasons(profile)
    yield site_table(profile, labels)
    if labels:
        yield Bullets(tuple(f"{label}: {shortened(reason, LONGEST_REASON)}" for reason, label in labels.items()))
    keys = key_table(profile, most) if has_keys else None
    if keys is not None:
        yield Paragraph(f"Calls in {_profiled(profile)}, by layout and key:")
        yield keys


def _profiled(profile: Profile) -> str:
    return f"the {count(profile.main_stage.steps, 'profiled step')}"


def shared_reasons(profile: Profile) -> Mapping[str, str]:
    """Reasons that more than one site gives, with a short name for each."""
    found = Counter(site.reason for site in profile.sites if site.reason)
    several = [reason for reason, number_of in found.most_common() if number_of > 1]
    return {reason: f"reason {index}" for index, reason in enumerate(several, 1)}


def site_table(profile: Profile, labels: Mapping[str, str]) -> Table:
    """What became of every site in the whole request, and what its first sights cost."""
    rows = tuple(
        (
            code(site.site),
            site.state,
            str(site.calls_fused),
            str(site.calls_eager),
            number(site.first_sight_ms, 1),
            number(site.jit_ms, 1),
            labels.get(site.reason, shortened(site.reason, LONGEST_REASON)) if site.reason else "",
        )
        for site in sorted(profile.sites, key=_told_first)
    )
    head = ("Site", "state", "fused calls, whole request", "eager calls, whole request", "first sight ms", "JIT ms")
    return Table((*head, "reason"), rows, range(2, 6))


def _told_first(site: SiteRecord) -> tuple[bool, str]:
    return (site.state != "fused", site.site)


def key_table(profile: Profile, most: int) -> Table | None:
    """How often each site was called with which key and layout in the profiled steps; None where none was."""
    found = [(site.site, key) for site in profile.sites for key in site.keys]
    found.sort(key=lambda one: (one[0], -one[1].calls, one[1].key))
    rows: list[tuple[Text, ...]] = [
        (code(name), str(key.calls), key.layout or MISSING, code(key.key, 2 * LONGEST_NAME))
        for name, key in found[:most]
    ]
    if len(found) > most:
        more = found[most:]
        rows.append((f"{len(more)} more", str(sum(key.calls for _, key in more)), "", ""))
    head = ("Site", f"calls in {_profiled(profile)}", "layout", "key, or why a call was not taken")
    return Table(head, tuple(rows), range(1, 2)) if rows else None
