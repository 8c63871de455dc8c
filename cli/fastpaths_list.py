"""``fuseproof fastpaths list``: which sites a model has, and which would mount on this machine."""

from __future__ import annotations

import json

import click

from fuseproof.cli.fastpaths_coverage import coverage, grouped, shared_coverage_lines
from fuseproof.cli.options import json_option

SCHEMA = "fuseproof.fastpaths-list/1"


@click.command("list")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="A family, a published id, embedded:FAMILY or a model folder; repeatable. [default: every family]",
)
@click.option("--fastpaths-from", metavar="FILE", help="Python file with fast paths of your own, listed with them.")
@json_option()
def list_sites(models: tuple[str, ...], fastpaths_from: str | None, as_json: bool) -> None:
    """List every site of a model: quality, what it replaces, and whether it would mount here.

    No weight is read and nothing is downloaded: sites are asked about the model's shape on this machine's device.
    A site that would mount may still decline a call, or be rejected by its gate; the perf dump of a run says so.
    """
    from fuseproof.pipelines.families import FAMILIES

    found = [coverage(model, fastpaths_from=fastpaths_from) for model in models or tuple(FAMILIES)]
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "models": found}, indent=2, allow_nan=False))
        return
    for index, group in enumerate(grouped(found)):
        if index:
            click.echo()
        for line in shared_coverage_lines(group):
            click.echo(line)
