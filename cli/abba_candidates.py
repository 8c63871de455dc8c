"""Several candidates for ``abba``: ``--candidate``, ``--candidate-command`` and ``--candidate-ref`` may be repeated.

The first of each is arm B and a field of the options like any other; the others are C, D, ... in the order given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fuseproof.cli.option_fields import flag, flag_name
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.cli.abba_options import AbbaOptions

CANDIDATE_FIELDS = ("candidate", "candidate_command", "candidate_ref")
REPEATED_FIELDS = (*CANDIDATE_FIELDS, "candidate_name")
Arms = dict[str, dict[str, Any]]


def repeatable(*names: str, metavar: str, description: str) -> Any:
    """A field for the first value of a flag that may be given several times; the others are ``more_candidates``."""
    declared = flag(*names, metavar=metavar, multiple=True, description=f"{description} Repeat it for C, D, ….")
    return dataclasses.field(default=None, metadata=declared.metadata)


def parted(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Parsed flags with the first candidate in the fields of B, and the others in ``more_candidates``."""
    given = {name: tuple(flags.get(name) or ()) for name in REPEATED_FIELDS}
    firsts = {name: values[0] if values else None for name, values in given.items()}
    return dict(flags) | firsts | {"more_candidates": {name: values[1:] for name, values in given.items()}}


def refuse_unpaired(options: AbbaOptions) -> None:
    """Raise :class:`UsageError` for too many candidates, or refs and flags of which nobody knows which go together."""
    from fuseproof.schedules.order import MOST_ARMS

    numbers = {flag_name(name): found for name in CANDIDATE_FIELDS if (found := _number_of(options, name))}
    if len(set(numbers.values())) > 1:
        told = " and ".join(f"{name} {number} times" for name, number in numbers.items())
        raise UsageError(
            f"{told} do not pair up: the first of each is arm B, the second arm C.",
            next_step="Give each of them once for every candidate.",
        )
    if numbers and max(numbers.values()) >= MOST_ARMS:
        raise UsageError(
            f"There are {max(numbers.values())} candidates; a campaign has {MOST_ARMS} arms at most.",
            next_step="Split them over several campaigns.",
        )


def number_given(options: AbbaOptions) -> int:
    """How many candidates the command line names; 0 where it leaves them to the plan."""
    return max(_number_of(options, name) for name in CANDIDATE_FIELDS)


def with_further_candidates(options: AbbaOptions, arms: Arms, plan_candidate: dict[str, Any]) -> Arms:
    """The arms with those of the repeated flags; ``arms`` has B already, ``plan_candidate`` is B as the plan has it.

    A plan of several candidates takes as many on the command line as it has, or none.
    """
    from fuseproof.schedules.order import LETTERS

    number = number_given(options)
    further = {key: arm for key, arm in arms.items() if key not in ("baseline", "candidate")}
    if number == 0 or (number == 1 and not further):
        return arms
    if further and number != 1 + len(further):
        raise UsageError(
            f"Plan {options.plan} has {1 + len(further)} candidates, and the command line names {number}.",
            next_step=f"Name all {1 + len(further)}, or write a plan of your own.",
        )
    letters = LETTERS[2 : 1 + number]
    keys = list(further) or [f"candidate-{letter.lower()}" for letter in letters]
    found = {role: arms[role] for role in ("baseline", "candidate")}
    if not further:
        found["candidate"] = found["candidate"] | {"name": "candidate B"}
    for index, (key, letter) in enumerate(zip(keys, letters, strict=True)):
        own = further.get(key) or plan_candidate | {"name": f"candidate {letter}"}
        found[key] = arm_from(options, own, *(_further(options, name, index) for name in CANDIDATE_FIELDS))
    return found


def arm_from(
    options: AbbaOptions, arm: dict[str, Any], flags: str | None, command: str | None, ref: str | None
) -> dict[str, Any]:
    """An arm of the plan with what the command line says instead."""
    if command is not None:
        arm = {"name": arm["name"], "command": command}
    elif flags is not None:
        arm = {"name": arm["name"], "flags": flags}
    return arm if ref is None else arm | {"ref": ref, "repo": options.repo or arm.get("repo")}


def refuse_several(options: AbbaOptions, arms: Arms) -> None:
    """Raise :class:`UsageError` for flags that speak of two arms where there are more."""
    if len(arms) <= 2:
        return
    for name, what in (("aa", "runs the baseline as both arms"), ("quick", "compares two arms")):
        if getattr(options, name):
            raise UsageError(
                f"{flag_name(name)} {what}, and this plan has {len(arms)}.",
                next_step="Leave it out, or name a plan with one candidate.",
            )


def all_given(options: AbbaOptions, name: str) -> Sequence[str]:
    """Every value of one of the repeated flags, B's first."""
    first = getattr(options, name)
    return () if first is None else (first, *options.more_candidates.get(name, ()))


def _number_of(options: AbbaOptions, name: str) -> int:
    return len(all_given(options, name))


def _further(options: AbbaOptions, name: str, index: int) -> str | None:
    values = options.more_candidates.get(name, ())
    return values[index] if index < len(values) else None
