"""The Result section's account of which code ran: fused and eager calls of each site in both arms, and why."""

from __future__ import annotations

from collections.abc import Sequence

from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
from fuseproof.harness.analysis.fastpath_losses import SiteCounts
from fuseproof.harness.number_format import count, shortened
from fuseproof.harness.report.document import Code, Details, Paragraph, Part, Table, Text
from fuseproof.harness.report.layout import Layout

CALLS = "Calls are summed over an arm's runs."
REUSE = (
    "Eager calls beside fused ones at {sites} are no fallback: each value is computed once by "
    "the eager chain, then reused, and every reuse is a fused call."
)
SITES_HEAD = (
    "Workload",
    "Site",
    "Baseline: state, fused / eager calls",
    "Candidate: state, fused / eager calls",
    "Baseline's reason",
    "Candidate's reason",
)
MOST_NOTES = 8


def fastpath_parts(analysis: CampaignAnalysis, layout: Layout) -> list[Part]:
    """One sentence of counts, and the table of sites folded away; nothing where no arm reports a site."""
    proven = [cell for cell in analysis.cells if cell.fastpaths.sites]
    if not proven:
        return []
    sentence = _calls_sentence(next((cell for cell in proven if not cell.fastpaths.is_as_asked), proven[0]))
    rows: list[tuple[Text, ...]] = []
    for cell in proven[: layout.rows]:
        for site in cell.fastpaths.sites:
            arms = (_site_text(site.baseline), _site_text(site.candidate))
            reasons = (_site_reasons(site.baseline), _site_reasons(site.candidate))
            rows.append((cell.name, Code(site.site), *arms, *reasons))
    note = Paragraph(" ".join((CALLS, *_eager_notes(proven))))
    return [Paragraph(sentence), Details("Fast paths: which code ran", (Table(SITES_HEAD, tuple(rows)), note))]


def _calls_sentence(cell: CellAnalysis) -> str:
    """How much ran fused; where a site was rejected or lost, that first, for a count alone would praise what ran."""
    proof = cell.fastpaths
    calls = (
        f"the candidate made {proof.fused_calls('B'):,} fused calls in {count(len(cell.runs.of_arm('B')), 'run')} at "
        f"{count(proof.fused_sites('B'), 'site')}, the baseline {proof.fused_calls('A'):,} in "
        f"{count(len(cell.runs.of_arm('A')), 'run')}."
    )
    if proof.is_as_asked:
        return f"Fast paths ({cell.name}): {calls}"
    losses = ", ".join(dict.fromkeys(warning.code for warning in proof.warnings))
    return f"Fast paths ({cell.name}): not all that was asked for ran fused ({losses}; Summary). Of what did, {calls}"


def _eager_notes(cells: Sequence[CellAnalysis]) -> list[str]:
    """Why calls were eager: a site's own reason where it gives one, else that a value is computed once and reused."""
    sites: dict[str, dict[str, None]] = {}
    reused: dict[str, None] = {}
    for cell in cells:
        for site in cell.fastpaths.sites:
            found = site.candidate
            if found is None or not found.calls_eager:
                continue
            if found.reasons:
                sites.setdefault(_site_reasons(found), {})[site.site] = None
            elif found.calls_fused > 0:
                reused[site.site] = None
    stated = [f"Eager at {', '.join(names)}: {why.rstrip('.')}." for why, names in sites.items()]
    is_as_asked = all(cell.fastpaths.is_as_asked for cell in cells)
    reuse = [REUSE.format(sites=", ".join(reused))] if reused and is_as_asked else []
    return [*stated[:MOST_NOTES], *reuse]


def _site_text(counts: SiteCounts | None) -> str:
    if counts is None:
        return "not mounted"
    return f"{', '.join(counts.states)}, {counts.calls_fused:,} / {counts.calls_eager:,}"


def _site_reasons(counts: SiteCounts | None) -> str:
    return shortened("; ".join(counts.reasons), 200) if counts else ""
