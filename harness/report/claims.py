"""The last section of a report: what is claimed of each workload, what is not and why, and what was not benchmarked."""

from __future__ import annotations

from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.analysis.claims import Claim, claim_noun, claims, scope_text, whole_campaign_text
from fuseproof.harness.analysis.placement import side_by_side_text
from fuseproof.harness.number_format import count
from fuseproof.harness.report.document import Bullets, Details, Part, Section, Strong, Text, bullets
from fuseproof.harness.report.layout import Layout
from fuseproof.harness.report.overview import notable_cells

MOST_FOLDED = 60


def claims_section(analysis: CampaignAnalysis, layout: Layout) -> Section:
    """A line a workload, then the campaign as a whole, and the scope."""
    by_name = {claim.name: claim for claim in claims(analysis)}
    ordered = [by_name[cell.name] for cell in notable_cells(analysis)]
    shown, hidden = ordered[: layout.claims], ordered[layout.claims :]
    lines: list[Text] = [_line(claim) for claim in shown]
    if hidden:
        claimed = sum(claim.is_claimed for claim in hidden)
        more = count(len(hidden), f"more {claim_noun(analysis)}")
        lines.append(f"{more}: {claimed} claimed, {len(hidden) - claimed} not; below.")
    lines.append(whole_campaign_text(analysis, ordered))
    scope = scope_text(analysis)
    lines += [scope] if scope else []
    placed = side_by_side_text(analysis.campaign.slots())
    lines += [f"Scope: {placed}."] if placed else []
    folded: tuple[Part, ...] = ()
    if hidden and layout.has_cell_details:
        rest = bullets(_line(claim) for claim in hidden[:MOST_FOLDED])
        folded = (Details(f"The other {claim_noun(analysis)}s' claims", rest),)
    return Section("Claims", (Bullets(tuple(lines)), *folded))


def _line(claim: Claim) -> Text:
    return (Strong(claim.name), ": ", Strong(claim.word), claim.text)
