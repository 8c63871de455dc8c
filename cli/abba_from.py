"""``fuseproof abba --from CAMPAIGN``: a stored campaign's plan, measured anew on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.cli.option_fields import flag_name
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.cli.abba_options import AbbaOptions
    from fuseproof.harness.campaign.replay import Replay

OVERRIDES = {"blocks": "blocks", "retries": "retries", "timeout": "timeout_s"}
"""Flags that may change the stored plan, and the plan's key: how often and how long, never what is measured."""
FREE_FLAGS = frozenset(
    {
        *("from_stored", "quick", "output", "dry_run", "repo", "allow_busy", "require", "require_fastpaths", "as_json"),
        *("gpus", "executor", "gpus_per_block", "model_cache_root", "cleanup_model_cache", "floor", "bench", "show"),
    }
)
"""Fields of ``abba``'s options that say where and how the plan runs, and what is asked of its result."""


def given_fields(options: AbbaOptions) -> list[str]:
    """The fields of ``abba``'s options that are not as they are without a flag, in the order of their declaration."""
    found = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        is_given = any(value.values()) if isinstance(value, Mapping) else value != field.default
        found += [field.name] if is_given else []
    return found


def refuse_other_plans(options: AbbaOptions) -> None:
    """Raise :class:`UsageError` for a flag that would make it another plan than the stored one."""
    for field in given_fields(options):
        if field not in FREE_FLAGS and field not in OVERRIDES:
            named = "PLAN" if field == "plan" else flag_name(field)
            raise UsageError(
                f"--from takes the plan of a stored campaign as it is, and {named} was given beside it; only "
                f"{', '.join(map(flag_name, OVERRIDES))} change it.",
                next_step="Leave one of them out; a plan of your own is a .toml file (docs/plan.md).",
            )


def plan_again(options: AbbaOptions) -> Replay:
    """The stored plan as it will run here, where it comes from, and what a person should know of it."""
    from fuseproof.harness.campaign.folder import Campaign
    from fuseproof.harness.campaign.replay import campaign_folder, replay
    from fuseproof.harness.verification.stored_plan import plan_remarks

    given = {key: getattr(options, field) for field, key in OVERRIDES.items() if getattr(options, field) is not None}
    stored = options.from_stored or ""
    try:
        path = Path(stored).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"--from is {stored!r}, and there is no such home folder.", next_step="Give the folder's full path."
        ) from error
    again = replay(path, Path.cwd(), options.repo, given)
    again.remarks += plan_remarks(Campaign.open(campaign_folder(path)))
    return again


def remarks_of(again: Replay, environment: dict[str, object]) -> list[str]:
    """What is different here, and what was replaced, for stderr."""
    from fuseproof.harness.campaign.replay import environment_changes

    changes = environment_changes(again.environment, environment)
    told = [f"since campaign {again.source.campaign}, {change}" for change in changes]
    return [again.source.sentence.rstrip("."), *again.remarks, *told]
