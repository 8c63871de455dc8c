"""Where a plan's arms come from, as the command line changes it: checkout, interpreter, set-up, which cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.cli.abba_options import AbbaOptions
    from fuseproof.schedules.plan import Arm, Plan

TREE = "{tree}"


def with_sources(options: AbbaOptions, arms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The arms with ``--repo``, ``--setup`` (of arms with a ref), ``--time-pattern`` (of commands) and ``--python``."""
    of_ref = {key: value for key in ("repo", "setup") if (value := getattr(options, key)) is not None}
    of_all = {} if options.python is None else {"python": options.python}
    of_command = {} if options.time_pattern is None else {"time_pattern": options.time_pattern}
    changed = {
        role: arm
        | of_all
        | (of_ref if arm.get("ref") is not None else {})
        | (of_command if arm.get("command") is not None else {})
        for role, arm in arms.items()
    }
    if of_command and all(arm.get("command") is None for arm in changed.values()):
        raise UsageError(
            "--time-pattern reads the printed time of commands, and both arms are `generate`, which writes a dump.",
            next_step="Leave it out, or give the arms with --baseline-command and --candidate-command.",
        )
    if of_ref and all(arm.get("ref") is None and not _needs_tree(arm) for arm in changed.values()):
        raise UsageError(
            f"--{next(iter(of_ref))} is for arms with a git ref, and there is none.",
            next_step="Add --baseline-ref or --candidate-ref, or write ref in the plan.",
        )
    return changed


def refuse_rootless_cleanup(options: AbbaOptions) -> None:
    """Raise :class:`UsageError` for ``--cleanup-model-cache`` without a root of its own; a resumed campaign has one."""
    if options.cleanup_model_cache and options.model_cache_root is None and options.resume is None:
        raise UsageError(
            "--cleanup-model-cache removes files from --model-cache-root, and none is given.",
            next_step="Add --model-cache-root DIR; the hub's own cache is never cleaned.",
        )


def only_cells(names: str | None, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells that ``--cells`` names, in the plan's order; all of them where it is not given."""
    if names is None:
        return cells
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    known = [cell["name"] for cell in cells]
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise UsageError(
            f"--cells is {names!r}, and the plan's cells are {', '.join(known)}.",
            next_step="Name one or more of them, separated by commas.",
        )
    kept = [cell for cell in cells if cell["name"] in chosen]
    return [cell | {"reference": None} if cell.get("reference") not in chosen else cell for cell in kept]


def refuse_missing_refs(plan: Plan) -> None:
    """Raise :class:`UsageError` for arms whose command runs in the tree of a ref that nobody has named."""
    missing = [role for role, arm in plan.arms.by_key.items() if arm.ref is None and _needs_tree(_facts(arm))]
    if not missing:
        return
    flags = " ".join(f"--{role}-ref REF" for role in missing)
    what = "arm runs" if len(missing) == 1 else "arms run"
    raise UsageError(
        f"Plan {plan.name}: the {' and '.join(missing)} {what} in the tree of a git ref, and no ref was given.",
        next_step=f"Add --repo CHECKOUT {flags}; without --repo the checkout is the present folder's.",
    )


def refuse_unheard_flags(plan: Plan, flags: str | None) -> None:
    """Raise :class:`UsageError` where ``--flags`` would reach neither arm."""
    from fuseproof.harness.campaign.arms import takes_flags

    if flags is not None and not any(takes_flags(arm) for arm in plan.arms.all):
        raise UsageError(
            "--flags has no effect when both arms are commands of their own.",
            next_step="Write the flags into both commands, or {flags} where they belong.",
        )


def _facts(arm: Arm) -> dict[str, Any]:
    return {"command": arm.command, "env": arm.env}


def _needs_tree(arm: dict[str, Any]) -> bool:
    return TREE in (arm.get("command") or "") or any(TREE in value for value in (arm.get("env") or {}).values())
