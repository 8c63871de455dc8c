"""``fuseproof report DIR DIR2``: two campaigns side by side, without pooling."""

from __future__ import annotations

import click

from fuseproof.errors import UsageError

PAIR_FORMATS = ("text", "markdown")


def show_pair(first: str, second: str, output_format: str, *, is_plain: bool) -> int:
    """Print both campaigns; nothing is written. ``is_plain``: no option was given that speaks of one campaign.

    The exit code: 6 when either is invalid, else 0.
    """
    from fuseproof.harness.escape import visible
    from fuseproof.harness.report import pair_lines, read_pair, render_pair

    if output_format not in PAIR_FORMATS:
        raise UsageError(
            f"--format {output_format} speaks of one campaign; two are shown as {' or '.join(PAIR_FORMATS)}.",
            next_step=f"Give one folder, or --format {PAIR_FORMATS[-1]}.",
        )
    if not is_plain:
        raise UsageError(
            "--check, --block, --head, --repo and --plan-for speak of one campaign.",
            next_step="Give one folder, or leave them out.",
        )
    pair = read_pair(first, second)
    if output_format == "markdown":
        click.echo(render_pair(pair), nl=False)
    else:
        click.echo("".join(f"{visible(line)}\n" for line in pair_lines(pair)), nl=False)
    return pair.exit_code()
