"""The flags of ``abba``'s arms, read by ``generate``'s own parser before anything runs or is written."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuseproof.cli.generate import generate, options_of
from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.schedules.plan import Plan

GENERATE_NAME = "fuseproof generate"


def check_plan(plan: Plan) -> None:
    """Refuse, with :class:`UsageError`, every plan that cannot run or may not be stored."""
    from fuseproof.harness.campaign.arms import check_arms, portable
    from fuseproof.harness.campaign.inputs import refuse_missing_inputs

    check_arms(plan)
    portable(plan)
    parsed = refuse_bad_flags(plan)
    refuse_missing_inputs(plan, Path.cwd())
    refuse_bad_requests(parsed)


def refuse_bad_flags(plan: Plan) -> list[tuple[str, GenerateOptions]]:
    """What the arms' flags amount to, with cell and arm, of every arm that runs this ``generate``.

    Raises :class:`UsageError` naming both and generate's own sentence for flags that generate refuses.
    """
    found = []
    from fuseproof.harness.campaign.arms import generate_words

    for cell in plan.cells:
        for role, arm in plan.arms.by_key.items():
            if arm.command is not None or arm.ref is not None or arm.python is not None:
                continue  # another commit's generate may know other flags: its slots say so
            parsed = parsed_flags(generate_words(arm, cell, Path("perf.json"), Path("outputs")))
            if isinstance(parsed, FuseproofError):
                raise refusal(f"Cell {cell.name}, {role}", parsed)
            if parsed.verify_every_step:
                raise UsageError(
                    f"Cell {cell.name}, {role}: --verify-every-step runs every call twice, so its times mean nothing.",
                    next_step="Run it with `fuseproof generate`; compare times without it.",
                )
            if parsed.profile:
                raise UsageError(
                    f"Cell {cell.name}, {role}: --profile slows the host down, so its times mean nothing.",
                    next_step="Drop it here; `fuseproof profile --before A --after B` compares two profiles.",
                )
            found.append((f"Cell {cell.name}, {role}", parsed))
    return found


def refuse_bad_requests(arms: Sequence[tuple[str, GenerateOptions]]) -> None:
    """Raise :class:`UsageError` with generate's own sentence for the first request that it would refuse to begin."""
    from fuseproof.cli.request_checks import Checked, refuse_request

    checked: Checked = {}
    for place, options in arms:
        try:
            refuse_request(options, checked)
        except FuseproofError as error:
            raise refusal(place, error) from error


def refusal(place: str, error: FuseproofError) -> UsageError:
    """``error`` of generate, said of a cell's arm before anything runs."""
    return UsageError(f"{place}: generate would refuse these flags: {error.message}", next_step=error.next_step)


def parsed_flags(words: Sequence[str]) -> GenerateOptions | FuseproofError:
    """The options that ``generate``'s flags amount to, or its refusal. Reads a ``--config`` file, nothing else."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            context = generate.make_context(GENERATE_NAME, list(words))
            with context:
                return options_of(context, context.params)
        except click.exceptions.Exit:
            return UsageError("--help runs nothing.", next_step="Leave it out.")
        except click.ClickException as error:
            return UsageError(error.format_message(), next_step=f"{GENERATE_NAME} --help lists every option.")
        except FuseproofError as error:
            return error
