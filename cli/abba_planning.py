"""``fuseproof abba --plan-for 1.5%``: how many blocks find an effect, from a scatter that is given or was measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.cli.abba_options import AbbaOptions

DEFAULT_MIN_EFFECT = 0.01
SCHEMA = "fuseproof.abba-plan-for/1"


def share(text: str, flag: str) -> float:
    """``1.5%`` or ``0.015`` as a share; :class:`UsageError` names the flag."""
    written = text.strip()
    try:
        value = float(written.removesuffix("%")) / (100.0 if written.endswith("%") else 1.0)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise UsageError(
            f"{flag} is {text!r}; it must be above 0 and below 1, as 1.5% or 0.015.",
            next_step="Give it as a share or with a percent sign.",
        )
    return value


def show_plan(options: AbbaOptions) -> int:
    """Print the fewest blocks for ``--plan-for``; nothing runs and nothing is written."""
    effect = share(options.plan_for or "", "--plan-for")
    min_effect = None if options.min_effect is None else share(options.min_effect, "--min-effect")
    lines = _from_scatter(options, effect, min_effect) if options.scatter else _measured(options, effect, min_effect)
    if options.as_json:
        document: dict[str, Any] = {"schema": SCHEMA, "effect": effect, "lines": lines}
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        click.echo("\n".join(lines))
    return 0


def _from_scatter(options: AbbaOptions, effect: float, min_effect: float | None) -> list[str]:
    from fuseproof.cli.abba_candidates import number_given
    from fuseproof.harness.analysis.planning import plan_line

    scatter = share(options.scatter or "", "--scatter")
    arms = 1 + max(1, number_given(options))
    return [plan_line(effect, scatter, DEFAULT_MIN_EFFECT if min_effect is None else min_effect, arms)]


def _measured(options: AbbaOptions, effect: float, min_effect: float | None) -> list[str]:
    if options.from_campaign is None:
        raise UsageError(
            "--plan-for needs to know how much one run scatters.",
            next_step="Add --from-campaign DIR (an earlier campaign, best an --aa one), or --scatter 0.3%.",
        )
    return _lines_of(options.from_campaign, effect, min_effect)


def show_plan_of(directory: str, effect: str) -> int:
    """Print the fewest blocks for ``effect`` by the scatter of the campaign in ``directory``, a line a cell."""
    click.echo("\n".join(_lines_of(directory, share(effect, "--plan-for"), None)))
    return 0


def _lines_of(directory: str, effect: float, min_effect: float | None) -> list[str]:
    from fuseproof.harness.analysis.campaign import analyse
    from fuseproof.harness.analysis.planning import plan_lines
    from fuseproof.harness.campaign.folder import Campaign
    from fuseproof.harness.escape import visible

    return [visible(line) for line in plan_lines(analyse(Campaign.open(directory)), effect, min_effect)]
