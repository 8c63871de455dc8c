"""``fuseproof fastpaths``: what fast paths there are, what they do, whether their bits hold, and how fast they are."""

from __future__ import annotations

import click

from fuseproof.cli.fastpaths_bench import bench
from fuseproof.cli.fastpaths_capture import capture
from fuseproof.cli.fastpaths_explain import explain
from fuseproof.cli.fastpaths_list import list_sites
from fuseproof.cli.fastpaths_task import task
from fuseproof.cli.fastpaths_verify import verify


@click.group()
def fastpaths() -> None:
    """List, explain, check, measure and hand over fast paths.

    docs/fast-paths.md is the same guide as a page.
    """


for _command in (list_sites, explain, verify, capture, bench, task):
    fastpaths.add_command(_command)
