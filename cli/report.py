"""``fuseproof report``: render a campaign again from its folder, on any machine, and print its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fuseproof.cli import exit_codes
from fuseproof.cli.options import json_option
from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis

MOST_NAMES = 6


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=str))
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="What to print: the result in a few lines, report.md, or report.json.",
)
@json_option("Print report.json; the same as --format json.")
@click.option("--check", is_flag=True, help="Write nothing; fail unless every report file and checksum is up to date.")
@click.option(
    "--block",
    "blocks",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Judge only this block, and say so; repeatable. Prints, and writes nothing.",
)
def report(directory: str, output_format: str, as_json: bool, check: bool, blocks: tuple[int, ...]) -> int:
    """Render the campaign in DIR again: report.md, report.html, report.json and SHA256SUMS.

    The same folder always gives the same bytes, without torch and wherever it was copied to. An interrupted campaign
    is rendered as far as it came. Measurements that are no longer what SHA256SUMS lists are not signed again.

    Exit code: 0, 1 an arm failed, a measurement changed or --check found a difference, 4 the outputs do not keep their
    contract, 6 the measurement is invalid.
    """
    from fuseproof.harness.analysis.campaign import analyse
    from fuseproof.harness.campaign.folder import Campaign
    from fuseproof.harness.report import write_report

    if check and blocks:
        raise UsageError(
            "--check speaks of the whole report and --block of a part of it.", next_step="Leave one of them out."
        )
    if check or blocks:
        analysis = analyse(Campaign.open(directory), blocks)
        if check:
            _refuse_stale(directory, analysis)
    else:
        try:
            analysis = write_report(directory)
        except FuseproofError:
            _show_what_is_left(directory)
            raise
    click.echo(_rendered(analysis, "json" if as_json else output_format, is_written=not blocks), nl=False)
    code = analysis.exit_code()
    return 0 if code == exit_codes.SLOWER else code


def _show_what_is_left(directory: str) -> None:
    """Print the result of a signed campaign that has lost slots; it is not written, because it would be signed."""
    from fuseproof.harness.analysis.campaign import analyse
    from fuseproof.harness.campaign.folder import MISSING, Campaign

    campaign = Campaign.open(directory)
    if any(slot.reason_code == MISSING for slot in campaign.slots()):
        click.echo(_rendered(analyse(campaign), "text", is_written=False), nl=False)


def _refuse_stale(directory: str, analysis: CampaignAnalysis) -> None:
    from fuseproof.harness.report import changed_measurements, stale_files

    stale = stale_files(analysis)
    if stale:
        shown = ", ".join(stale[:MOST_NAMES]) + (
            f" and {len(stale) - MOST_NAMES} more" if len(stale) > MOST_NAMES else ""
        )
        is_touched = bool(changed_measurements(analysis))
        raise FuseproofError(
            f"{directory} is not what its report says: {shown} changed, missing or new.",
            next_step="Restore the files below slots/ that changed: a report is not rendered over other measurements."
            if is_touched
            else f"The measurements are untouched: fuseproof report {directory} renders the report again.",
        )


def _rendered(analysis: CampaignAnalysis, output_format: str, *, is_written: bool) -> str:
    from fuseproof.harness.escape import visible
    from fuseproof.harness.report import render_markdown, render_numbers

    if output_format == "markdown":
        return render_markdown(analysis)
    if output_format == "json":
        return render_numbers(analysis)
    lines = analysis.summary_lines()
    if is_written:
        lines.append(f"report: {analysis.directory / 'report.md'}")
    return "".join(f"{visible(line)}\n" for line in lines)
