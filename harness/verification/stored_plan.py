"""Is the plan of a stored campaign the one that was measured? Asked before it is measured again."""

from __future__ import annotations

from collections.abc import Iterator

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.folder import CAMPAIGN_FILE, MISSING, Campaign
from fuseproof.harness.campaign.left_out import SUMS_FILE, hash_of, noted_lines
from fuseproof.harness.media.files import file_sha256
from fuseproof.harness.report.sums import FINISHED
from fuseproof.harness.verification.commands import command_findings, plan_findings
from fuseproof.harness.verification.findings import Finding, Tally


def plan_remarks(campaign: Campaign) -> list[str]:
    """What a person should know of a plan that nobody has signed, a sentence each.

    Raises :class:`FuseproofError` where ``campaign.json`` is not the file that ``SHA256SUMS`` lists, or its plan not
    the one that the slots ran.
    """
    line = noted_lines(campaign.directory).get(CAMPAIGN_FILE)
    is_as_signed = line is not None and hash_of(line) == file_sha256(campaign.directory / CAMPAIGN_FILE)
    if line is not None and not is_as_signed and campaign.status in FINISHED:
        raise _not_measured(campaign, f"it is not the file that {SUMS_FILE} lists")
    for finding in _plan_findings(campaign):
        raise _not_measured(campaign, finding.text)
    if is_as_signed:
        return []
    return [f"{CAMPAIGN_FILE} of the stored campaign is in no {SUMS_FILE} as it is, so nothing shows it was not edited"]


def _plan_findings(campaign: Campaign) -> Iterator[Finding]:
    """Where the plan and what was run contradict each other."""
    yield from plan_findings(campaign, Tally())
    cells = {cell.name for cell in campaign.plan.cells}
    for record in campaign.slots():
        if record.reason_code == MISSING:
            continue
        if record.cell not in cells or record.arm not in campaign.plan.letters:
            yield Finding(record.directory, f"is of cell {record.cell} and arm {record.arm}, which the plan has not")
            continue
        yield from command_findings(campaign, record, Tally())


def _not_measured(campaign: Campaign, why: str) -> FuseproofError:
    return FuseproofError(
        f"The plan in {campaign.directory / CAMPAIGN_FILE} is not shown to be the one that was measured: {why}.",
        next_step=f"Restore the folder (`fuseproof verify {campaign.directory}` names every difference), or measure a "
        "plan of your own (docs/plan.md).",
    )
