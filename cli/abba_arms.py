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
    from fuseproof.schedules.arms import Arm
    from fuseproof.schedules.plan import Cell, Plan

PROFILE_FLAG = "--profile"
GENERATE_NAME = "fuseproof generate"
EVERY_OPTION = f"{GENERATE_NAME} --help lists every option."


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
                _refuse_profiled_command(f"Cell {cell.name}, {role}", arm, cell)
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
                raise _profiled(f"Cell {cell.name}, {role}")
            found.append((f"Cell {cell.name}, {role}", parsed))
    return found


def _refuse_profiled_command(place: str, arm: Arm, cell: Cell) -> None:
    """Raise for a command, or another commit, whose ``generate`` (ours or sglang's) is told to profile."""
    from fuseproof.harness.campaign.arms import filled_template, generate_words

    if arm.command is None:
        words = ("generate", *generate_words(arm, cell, Path("perf.json"), Path("outputs")))
    else:
        words = filled_template(arm, "perf.json", "outputs", cell=cell)
    if _asks_for_a_profile(words):
        raise _profiled(place)


def _asks_for_a_profile(words: Sequence[str]) -> bool:
    own = words[words.index("generate") + 1 :] if "generate" in words else ()
    is_asked = False
    for word, following in zip(own, (*own[1:], ""), strict=False):  # no word, no pair
        flag, equals, value = word.partition("=")
        if flag == PROFILE_FLAG:
            is_asked = (value if equals else following).lower() != "false"
    return is_asked


def _profiled(place: str) -> UsageError:
    return UsageError(
        f"{place}: --profile slows the host down, so its times mean nothing.",
        next_step="Drop it here; `fuseproof profile --before A --after B` compares two profiles.",
    )


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
            return UsageError(error.format_message(), next_step=EVERY_OPTION)
        except FuseproofError as error:
            return error
