"""``fuseproof report``: render a campaign again from its folder, on any machine, and print its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fuseproof.cli import exit_codes
from fuseproof.cli.abba_planning import show_plan_of
from fuseproof.cli.bench_choice import REPORT_HELP as BENCH_HELP
from fuseproof.cli.bench_choice import keep_chosen_bench
from fuseproof.cli.floor_choice import HELP as FLOOR_HELP
from fuseproof.cli.floor_choice import change_floor
from fuseproof.cli.options import json_option
from fuseproof.cli.report_head import head_comparison
from fuseproof.cli.report_pair import show_pair
from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis

MOST_NAMES = 6
ALONE = "Leave one of them out."
REMOVE_HELP = "Writes into DIR, and says so; `none` takes the floor out again."


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=str))
@click.argument("other", metavar="[DIR2]", required=False, type=click.Path(path_type=str))
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "markdown", "json", "csv", "junit"]),
    default="text",
    show_default=True,
    help="What to print: the result in a few lines, report.md, report.json, every slot as a CSV row, or JUnit XML.",
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
@click.option(
    "--head",
    metavar="REF",
    help="Say on stderr whether the candidate's files at this git ref equal the measured ones.",
)
@click.option(
    "--repo", metavar="DIR", help="The checkout for --head. [default: the campaign's, else the present folder's]"
)
@click.option(
    "--plan-for",
    metavar="EFFECT",
    help="Print how many blocks find this effect, by the scatter of this campaign; write nothing.",
)
@click.option("--floor", metavar="PATH", type=click.Path(path_type=str), help=f"{FLOOR_HELP} {REMOVE_HELP}")
@click.option("--bench", metavar="FILE", type=click.Path(path_type=str), help=BENCH_HELP)
def report(
    directory: str,
    other: str | None,
    output_format: str,
    as_json: bool,
    check: bool,
    blocks: tuple[int, ...],
    head: str | None,
    repo: str | None,
    plan_for: str | None,
    floor: str | None,
    bench: str | None,
) -> int:
    """Render the campaign in DIR again: report.md, report.html, report.json and SHA256SUMS.

    The same folder always gives the same bytes, without torch and wherever it was copied to. An interrupted campaign
    is rendered as far as it came. Measurements that are no longer what SHA256SUMS lists are not signed again.

    With DIR2, print two campaigns side by side without pooling them, as text or markdown: what differs between their
    setups, and both results of every workload. Writes nothing; exit code 6 when either is invalid, else 0.

    Exit code: 0, 1 an arm failed, a measurement changed or --check found a difference, 4 the outputs do not keep their
    contract, 6 the measurement is invalid.
    """
    from fuseproof.harness.analysis.campaign import analyse
    from fuseproof.harness.campaign.folder import Campaign
    from fuseproof.harness.report import write_report

    if other is not None:
        is_plain = not (check or blocks or head or repo or plan_for or floor or bench)
        return show_pair(directory, other, "json" if as_json else output_format, is_plain=is_plain)
    if check and blocks:
        raise UsageError("--check speaks of the whole report and --block of a part of it.", next_step=ALONE)
    if plan_for is not None:
        return show_plan_of(directory, plan_for)
    changed = _kept(directory, floor, bench, writes=not (check or blocks))
    compared = head_comparison(directory, head, repo)
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
    wanted = "json" if as_json else output_format
    is_short = check and wanted == "text"
    shown = _up_to_date(directory, analysis) if is_short else _rendered(analysis, wanted, is_written=not blocks)
    click.echo(shown, nl=False)
    for said in (changed, compared and compared.sentence()):
        if said:
            click.echo(f"fuseproof: {said}", err=True)
    return _exit_code(analysis)


def _kept(directory: str, floor: str | None, bench: str | None, *, writes: bool) -> str:
    """Put into the folder what was named for it; says what was done, "" where nothing was named."""
    named = "--floor" if floor is not None else "--bench"
    if (floor is not None or bench is not None) and not writes:
        raise UsageError(f"{named} is kept in the folder, and --check and --block write nothing.", next_step=ALONE)
    said = [change_floor(directory, floor)] if floor is not None else []
    said += [keep_chosen_bench(directory, bench)] if bench is not None else []
    return "; ".join(said)


def _exit_code(analysis: CampaignAnalysis) -> int:
    code = analysis.exit_code()
    return 0 if code == exit_codes.SLOWER else code


def _up_to_date(directory: str, analysis: CampaignAnalysis) -> str:
    """One line for a reader who asked whether anything changed, and not for the result again."""
    from fuseproof.harness.analysis.sentences import word_counts
    from fuseproof.harness.escape import visible
    from fuseproof.harness.number_format import count

    found = f"{word_counts(analysis)} in {count(len(analysis.cells), analysis.noun)}"
    told = f"{directory} is up to date: every report file and checksum is what the measurements give ({found})"
    return f"{visible(told)}\n"


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
    from fuseproof.harness.report import render_csv, render_junit, render_numbers, render_written_markdown

    renderers = {"markdown": render_written_markdown, "json": render_numbers, "csv": render_csv, "junit": render_junit}
    if output_format in renderers:
        return renderers[output_format](analysis)
    lines = analysis.summary_lines()
    if is_written:
        lines.append(f"report: {analysis.directory / 'report.md'}")
    return "".join(f"{visible(line)}\n" for line in lines)
