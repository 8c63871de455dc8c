"""Which flags of ``fuseproof abba`` exclude or need each other. Asked while parsing, before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuseproof.cli.abba_ablate import refuse_useless_ablation
from fuseproof.cli.abba_candidates import refuse_unpaired
from fuseproof.cli.abba_from import refuse_other_plans
from fuseproof.cli.abba_lane_rules import refuse_useless_lanes
from fuseproof.cli.abba_quick_rules import refuse_useless_flags
from fuseproof.cli.abba_sources import refuse_rootless_cleanup
from fuseproof.cli.option_fields import flag_name
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.cli.abba_options import AbbaOptions

EXCLUSIVE = (
    ("scatter", "from_campaign"),
    ("baseline", "baseline_command"),
    ("candidate", "candidate_command"),
    ("aa", "candidate"),
    ("aa", "candidate_command"),
    ("aa", "candidate_ref"),
    ("aa", "candidate_name"),
    ("aa", "floor"),
    ("plan_for", "floor"),
    ("quick", "floor"),
    ("resume", "output"),
    ("resume", "dry_run"),
)

PATHS = {
    "from_stored": "--from",
    **{
        field: flag_name(field)
        for field in ("from_campaign", "model_cache_root", "output", "resume", "repo", "floor", "bench")
    },
}
"""Fields that name a folder or a file, and their flags."""


def refuse_contradictions(options: AbbaOptions) -> None:
    """Raise :class:`UsageError` for the first pair of flags that cannot both be meant."""
    _refuse_empty_paths(options)
    refuse_unpaired(options)
    _refuse_lone_planning_flags(options)
    refuse_useless_ablation(options)
    for first, second in EXCLUSIVE:
        _refuse_both(options, first, second)
    if options.quick:
        refuse_useless_flags(options)
    if options.from_stored is not None:
        refuse_other_plans(options)
    else:
        _refuse_lone_repository(options)
    if options.add_blocks is not None and options.resume is None:
        raise UsageError(
            f"--add-blocks {options.add_blocks} has no effect without --resume.",
            next_step="Name the complete campaign with --resume DIR, or plan the blocks of a new one with --blocks.",
        )
    refuse_useless_lanes(options)
    _refuse_lone_baseline(options)
    refuse_rootless_cleanup(options)


def _refuse_empty_paths(options: AbbaOptions) -> None:
    """An empty path, as an unset shell variable leaves it, would mean the present folder."""
    for field, flag in PATHS.items():
        value = getattr(options, field)
        if value is not None and not value.strip():
            raise UsageError(
                f"{flag} is {value!r}; a path was expected.",
                next_step="Leave it out, or name the folder; . is the present one.",
            )


def _refuse_lone_planning_flags(options: AbbaOptions) -> None:
    if options.plan_for is not None:
        return
    for field in ("scatter", "from_campaign"):
        if getattr(options, field) is not None:
            raise UsageError(f"{flag_name(field)} has no effect without --plan-for.", next_step="Add it.")


def _refuse_lone_repository(options: AbbaOptions) -> None:
    has_ref = options.baseline_ref is not None or options.candidate_ref is not None
    if options.repo is not None and options.plan is None and not has_ref:
        raise UsageError(
            "--repo says where refs are looked up, and there is none.",
            next_step="Add --baseline-ref or --candidate-ref, or write repo beside ref in the plan.",
        )


def _refuse_lone_baseline(options: AbbaOptions) -> None:
    if options.aa or options.plan is not None:
        return
    baselines, candidates = (_given(options, role) for role in ("baseline", "candidate"))
    if baselines and not candidates:
        raise UsageError(
            f"{baselines[0]} was given without {baselines[0].replace('baseline', 'candidate')}, so it would be "
            "compared with nothing that was said.",
            next_step="Add --candidate (or --candidate-command, --candidate-ref), or --aa to run the baseline twice.",
        )
    if "--candidate-command" in candidates and not baselines:
        raise UsageError(
            "--candidate-command was given without --baseline-command, so it would be compared with nothing that was "
            "said.",
            next_step='Add --baseline-command, or --baseline "FLAGS" to compare it with `fuseproof generate`.',
        )


def _given(options: AbbaOptions, role: str) -> list[str]:
    """Which of an arm's flags were given: ``--baseline``, ``--baseline-command``, ``--baseline-ref``."""
    return [
        flag_name(field) for field in (role, f"{role}_command", f"{role}_ref") if getattr(options, field) is not None
    ]


def _refuse_both(options: AbbaOptions, first: str, second: str) -> None:
    if getattr(options, first) not in (None, False) and getattr(options, second) not in (None, False):
        raise UsageError(f"{flag_name(first)} and {flag_name(second)} exclude each other.", next_step="Leave one out.")
