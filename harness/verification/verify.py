"""Verify a campaign folder: signature, places, hashes, numbers, metrics, report. Nothing is written.

Whether the result is good is the report's business; whether the folder still says what was measured is decided here.
Two files that contradict each other are found whoever signed them, because every check but the first recomputes.
A folder with links or pipes is not read at all, and a check that a hostile file breaks counts as failed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.harness.analysis.soundness import refuse_unsound_campaign
from fuseproof.harness.campaign.folder import CAMPAIGN_FILE, Campaign
from fuseproof.harness.campaign.records import DAMAGED_STEP
from fuseproof.harness.verification.findings import (
    HASHES,
    NUMBERS,
    REPORT,
    SIGNATURE,
    SLOTS,
    Check,
    Finding,
    Verification,
)
from fuseproof.harness.verification.folder import strange_entries
from fuseproof.harness.verification.hashes import check_hashes
from fuseproof.harness.verification.numbers import check_numbers
from fuseproof.harness.verification.places import check_places
from fuseproof.harness.verification.rendered import check_report
from fuseproof.harness.verification.signature import changed_files, check_signature

UNREAD = "nothing else was checked: a link or a pipe may lead out of the folder, or never end"


def verify_campaign(directory: Path | str) -> Verification:
    """Every check of the folder, in the order in which one rests on another.

    Raises :class:`FuseproofError` naming the file that no check can read: no campaign, or a damaged one.
    """
    folder = Path(directory)
    if os.path.lexists(folder / CAMPAIGN_FILE):
        strange = tuple(strange_entries(folder))
        if strange:
            return Verification(folder, (Check(SIGNATURE, {}, strange, (UNREAD,)),))
    campaign = _opened(folder)
    signature = _guarded(SIGNATURE, lambda: (check_signature(campaign),))[0]
    changed = changed_files(signature)
    own = (
        *_guarded(SLOTS, lambda: (check_places(campaign),)),
        *_guarded(HASHES, lambda: (check_hashes(campaign),)),
        *_guarded(NUMBERS, lambda: (check_numbers(campaign, changed),)),
    )
    report = _guarded(REPORT, lambda: check_report(campaign, own))
    return Verification(campaign.directory, (signature, *own, *report))


def _opened(folder: Path) -> Campaign:
    try:
        campaign = Campaign.open(folder)
        refuse_unsound_campaign(campaign)
    except FuseproofError:
        raise
    except Exception as error:  # a hostile file may break any reader, and a verifier says so in a sentence
        raise FuseproofError(
            f"{folder / CAMPAIGN_FILE} or a result.json cannot be read: {type(error).__name__}.", next_step=DAMAGED_STEP
        ) from error
    return campaign


def _guarded(name: str, make: Callable[[], tuple[Check, ...]]) -> tuple[Check, ...]:
    """The checks, or a failed one that says what broke: what could not be checked is never called verified."""
    try:
        return make()
    except FuseproofError as error:
        problem = f"cannot be checked: {error.message}"
    except Exception as error:  # noqa: BLE001 (the files are hostile until they are verified)
        problem = f"holds or names something that breaks this check ({type(error).__name__})"
    return (Check(name, {}, (Finding(CAMPAIGN_FILE, problem),)),)
