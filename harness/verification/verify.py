"""Verify a campaign folder: signature, places, hashes, numbers, metrics, report. Nothing is written.

Whether the result is good is the report's business; whether the folder still says what was measured is decided here.
Two files that contradict each other are found whoever signed them, because every check but the first recomputes.
"""

from __future__ import annotations

from pathlib import Path

from fuseproof.harness.analysis.soundness import refuse_unsound_campaign
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.verification.findings import Verification
from fuseproof.harness.verification.hashes import check_hashes
from fuseproof.harness.verification.numbers import check_numbers
from fuseproof.harness.verification.places import check_places
from fuseproof.harness.verification.rendered import check_report
from fuseproof.harness.verification.signature import changed_files, check_signature


def verify_campaign(directory: Path | str) -> Verification:
    """Every check of the folder, in the order in which one rests on another.

    Raises :class:`FuseproofError` naming the file that no check can read: no campaign, or a damaged one.
    """
    campaign = Campaign.open(directory)
    refuse_unsound_campaign(campaign)
    signature = check_signature(campaign)
    own = (
        check_places(campaign),
        check_hashes(campaign),
        check_numbers(campaign, changed_files(signature)),
    )
    is_contradicted = any(check.findings for check in own)
    return Verification(
        campaign.directory, (signature, *own, *check_report(campaign, has_other_findings=is_contradicted))
    )
