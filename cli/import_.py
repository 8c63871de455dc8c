"""``fuseproof import``: a campaign folder from perf dumps, logs and outputs that exist already."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli.compare_perf import EffectShare
from fuseproof.cli.option_fields import Name
from fuseproof.cli.options import json_option
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis


@dataclass(frozen=True)
class ImportOptions:
    """What the user asked for, as parsed."""

    sources: tuple[Path, ...]
    output_dir: Path
    labels: str | None
    manifest: Path | None
    name: str | None
    title: str | None
    contract: str | None
    primary: str | None
    min_effect: float | None
    created: str | None
    as_json: bool

    def __post_init__(self) -> None:
        for flag, value in (("--labels", self.labels), ("--name", self.name)):
            if value is not None and not value.strip():
                raise UsageError(f"{flag} is empty.", next_step=f"Leave {flag} out, or say something.")

    @property
    def moment(self) -> datetime | None:
        """``--created`` as a moment; :class:`UsageError` for what is none."""
        from fuseproof.harness.importing.placing import utc_moment

        try:
            return None if self.created is None else utc_moment(datetime.fromisoformat(self.created))
        except (ValueError, OverflowError) as error:
            raise UsageError(
                f"--created {self.created!r} is no ISO 8601 time.", next_step="Write 2026-09-20T19:34:00+00:00."
            ) from error


@click.command("import")
@click.argument("sources", nargs=-1, type=click.Path(path_type=Path, readable=False), metavar="SOURCE...")
@click.option(
    "--output-dir",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The campaign folder: new, or empty.",
)
@click.option(
    "--labels",
    metavar="PATTERN",
    help="How file names are made, with {cell}, {block}, {arm} (a1, B2, baseline-1) and {position} (1 to 4) in place "
    "of what varies: '{block}-{arm}' for r1-a1.json. With a / it is matched against the last folders too. [default: "
    "the known forms are tried]",
)
@click.option(
    "--manifest",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A TOML file that says what names cannot: tools, quality words, commands, workloads, or every slot by path.",
)
@click.option("--name", metavar="NAME", help="The campaign's name. [default: the first workload's]")
@click.option("--title", metavar="TEXT", help="Heads the report.")
@click.option(
    "--contract",
    metavar="CONTRACT",
    help="What the outputs must keep: exact, or for example close:ssim>=0.95,psnr>=28. [default: exact]",
)
@click.option("--primary", type=Name("worker", "denoise", "client"), help="The verdict's timer. [default: worker]")
@click.option(
    "--min-effect", type=EffectShare(), metavar="SHARE", help="Smallest effect that matters, 1% or 0.01. [default: 1%]"
)
@click.option("--created", metavar="TIME", help="When it was measured, ISO 8601. [default: the newest dump's time]")
@json_option("Print what was imported, and the words, as strict JSON.")
def import_(**arguments: Any) -> int:
    """Make a campaign folder from perf dumps, logs and outputs that exist already.

    SOURCE is a folder or a perf dump, ours or sglang's; what lies beside a dump X.json under the same name (X.log,
    X.png, the folder X) is imported with it. The report is the same as that of `abba`, and says at its top that nothing
    here was observed by this program. Files are copied, and no source is changed. The same files give the same folder,
    byte for byte.

    \b
    fuseproof import old-evidence/klein --labels '{block}-{arm}' --output-dir klein-campaign
    fuseproof import --manifest evidence.toml --output-dir campaign

    Exit codes: 0 imported (whatever the verdict; `report` has codes for it), 1 unreadable input, 2 usage.
    """
    options = ImportOptions(**arguments)
    analysis = _imported(options)
    if options.as_json:
        click.echo(json.dumps(_as_json(analysis), indent=2, allow_nan=False))
    else:
        _print(analysis)
    return 0


def _imported(options: ImportOptions) -> CampaignAnalysis:
    from fuseproof.harness.analysis.campaign import analyse
    from fuseproof.harness.campaign.folder import Campaign
    from fuseproof.harness.importing.campaign import ImportRequest, import_campaign
    from fuseproof.harness.importing.planning import Choices
    from fuseproof.harness.report import write_report

    request = ImportRequest(
        sources=options.sources,
        directory=options.output_dir,
        labels=options.labels,
        manifest=options.manifest,
        choices=Choices(options.name, options.title, options.contract, options.primary, options.min_effect),
        created=options.moment,
    )
    return analyse(Campaign.open(import_campaign(request, write_report)))


def _as_json(analysis: CampaignAnalysis) -> dict[str, Any]:
    from fuseproof.harness.importing.campaign import describe_import

    words = {cell.name: cell.word.value for cell in analysis.cells}
    return {**describe_import(analysis.campaign), "directory": str(analysis.directory), "words": words}


def _print(analysis: CampaignAnalysis) -> None:
    from fuseproof.harness.analysis.imported import imported_caveats
    from fuseproof.harness.escape import visible

    lines = analysis.summary_lines()
    lines += [f"note: {text}" for text in _lost_blocks(analysis)]
    lines += [f"note: {text}" for text in imported_caveats(analysis)]
    lines.append(f"report: {analysis.directory / 'report.md'}")
    click.echo("".join(f"{visible(line)}\n" for line in lines), nl=False)


def _lost_blocks(analysis: CampaignAnalysis) -> list[str]:
    from fuseproof.harness.analysis.campaign import failure_reason

    return [
        f"{cell.name}: block {lost.number} is not judged: {failure_reason(lost).detail}"
        for cell in analysis.cells
        for lost in cell.runs.lost
    ]
