"""``fuseproof verify``: recompute every hash, metric and number of a campaign, and name what does not agree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli import exit_codes
from fuseproof.cli.options import json_option
from fuseproof.errors import FuseproofError

if TYPE_CHECKING:
    from fuseproof.harness.verification.findings import Check, Verification

SEVERAL_SCHEMA = "fuseproof.verifications/1"
"""Of several campaigns: ``campaigns`` holds one ``fuseproof.verification/1`` each, with its ``directory``."""
MOST_FINDINGS = 5
"""Shown of each check; ``--json`` lists all of them."""


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=str))
@json_option("Print strict JSON instead of text: every check, every finding.")
def verify(directories: tuple[str, ...], as_json: bool) -> int:
    """Recompute what the campaign in every DIR says from what it keeps. Writes nothing, needs neither torch nor a GPU.

    Checks that SHA256SUMS lists every file as it is, that every slot stands where campaign.json says, the hashes of all
    outputs and kept arrays, the times, memory and work in every result.json against its perf.json, the metrics of the
    pictures, and every number and line of the report files. Numbers that contradict each other are found whoever
    signed them. Whether the result itself is good is not asked: that is `fuseproof report`.

    Of several folders each is checked on its own, and all of them whatever the first ones give.

    Exit code: 0 everything agrees, 1 something does not or a DIR is no campaign, 2 usage.
    """
    from fuseproof.cli.main import report_error

    if len(directories) == 1:
        return _show(_verified(directories[0]), as_json)
    documents: list[dict[str, Any]] = []
    code = exit_codes.DONE
    for directory in directories:
        try:
            verification = _verified(directory)
        except FuseproofError as error:
            report_error(error)
            documents.append({"directory": directory, "is_verified": False, "error": error.message})
            code = exit_codes.FAILED
            continue
        documents.append({"directory": directory, **verification.to_json()})
        code = code if verification.is_verified else exit_codes.FAILED
        if not as_json:
            click.echo(verification_text(verification), nl=False)
    verified = sum(document["is_verified"] for document in documents)
    if as_json:
        told = {"schema": SEVERAL_SCHEMA, "is_verified": verified == len(documents), "campaigns": documents}
        click.echo(json.dumps(told, indent=2, allow_nan=False))
    else:
        click.echo(f"{verified} of {len(documents)} campaigns verified")
    return code


def _verified(directory: str) -> Verification:
    from fuseproof.harness.verification.verify import verify_campaign

    return verify_campaign(directory)


def _show(verification: Verification, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(verification.to_json(), indent=2, allow_nan=False))
    else:
        click.echo(verification_text(verification), nl=False)
    return exit_codes.DONE if verification.is_verified else exit_codes.FAILED


def verification_text(verification: Verification) -> str:
    """One line a check, then its findings, then the verdict."""
    from fuseproof.harness.escape import visible

    lines = [line for check in verification.checks for line in _check_lines(check)]
    lines.append(f"audited: {_counted(verification.totals())}")
    if verification.is_verified:
        agrees = f"{verification.directory} agrees with everything that can be recomputed from it"
        lines.append(f"VERIFIED: {agrees}{_hashes(verification)}.")
    else:
        lines.append(f"NOT VERIFIED: {verification.first_text}.")
        lines.append(f"  next: {_advice(verification)}")
    return "".join(f"{visible(line)}\n" for line in lines)


def _hashes(verification: Verification) -> str:
    """``: 18 hashes recomputed; 9 of raw arrays stand as recorded, because those were not kept``; empty without any."""
    recomputed, recorded = verification.hashes_recomputed, verification.hashes_recorded
    if not recomputed and not recorded:
        return ""
    told = f": {recomputed:,} {'hash' if recomputed == 1 else 'hashes'} recomputed"
    kinds = [f"{amount:,} of {what}" for what, amount in sorted(recorded.items())]
    if not kinds:
        return told
    listed = kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} and {kinds[-1]}"
    return f"{told}; {listed} stand as recorded, because those were not kept"


def _check_lines(check: Check) -> list[str]:
    word = f"FAILED ({len(check.findings)})" if check.findings else "ok"
    lines = [f"{check.name:<10} {word:<11} {_counted(check.counts)}".rstrip()]
    lines += [f"  {finding.text}" for finding in check.findings[:MOST_FINDINGS]]
    if len(check.findings) > MOST_FINDINGS:
        lines.append(f"  and {len(check.findings) - MOST_FINDINGS} more; --json lists them")
    return lines + [f"  note: {note}" for note in check.notes]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{amount:,} {what}" for what, amount in counts.items() if amount) or "nothing to check"


def _advice(verification: Verification) -> str:
    from fuseproof.harness.verification.verify import UNREAD

    directory = verification.directory
    if any(UNREAD in check.notes for check in verification.checks):
        return "Put a file in the place of every link, pipe or device, or remove it: evidence lies in the folder."
    wrong = {check.name for check in verification.checks if check.findings}
    if wrong & {"slots", "hashes", "numbers"}:
        return "Restore the slot's files from a copy, or measure again in a new campaign."
    if wrong & {"report", "metrics"}:
        return (
            f"The slots agree with themselves; fuseproof report {directory} renders the report again. "
            "Another version of fuseproof words and rounds it otherwise."
        )
    return f"Restore what changed; where only the report files are unlisted, fuseproof report {directory} signs them."
