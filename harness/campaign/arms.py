"""From an arm to the exact command a slot runs.

A flags arm runs ``fuseproof generate`` in this Python; a command arm runs its own template. Both learn where the perf
dump and the outputs belong from the slot, never from the user. What is stored names neither a home folder nor a
secret: ``~`` stands for the home folder in a stored plan and is expanded here.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuseproof.errors import UsageError
from fuseproof.harness.campaign.arm_places import CACHE_FOLDERS, ArmPlace, interpreter, place_environment
from fuseproof.harness.campaign.arm_programs import refuse_missing_script
from fuseproof.harness.machine.redaction import REDACTED, redact
from fuseproof.harness.machine.usage import usable_cores
from fuseproof.schedules.plan import PLAN_DIR, PLANS_FOLDER, Arm, Cell, Plan, with_plan_dir

PLACEHOLDERS = ("perf_dump", "output_dir")
CELL_FLAGS = "{flags}"
"""A word of its own in a command: the cell's flags stand there, word by word."""
ARM_PLACEHOLDERS = ("python", "tree")
"""Also filled in: the arm's interpreter, and the tree of its ref."""

_PLACEHOLDER = re.compile(r"\{\{(?P<literal>\w+)\}\}|\{(?P<name>[A-Za-z_]\w*)\}")


@dataclass(frozen=True)
class SlotCommand:
    """What one slot executes. ``overrides`` are added to the inherited environment; ``writes_outputs`` says whether
    the arm was told where to put its media, and so must leave some there. ``working_directory`` is None for the
    campaign's own; ``caches`` are the folders that belong to this arm alone."""

    argv: tuple[str, ...]
    overrides: Mapping[str, str]
    writes_outputs: bool
    working_directory: Path | None = None
    caches: Mapping[str, str] = field(default_factory=dict)


def slot_command(arm: Arm, cell: Cell, perf_dump: Path, output_dir: Path, place: ArmPlace | None = None) -> SlotCommand:
    """The command of one slot; ``place`` is where an arm with a ref or a Python of its own runs.

    Raises :class:`UsageError` for a template with an unknown placeholder, or without ``{perf_dump}``.
    """
    place = ArmPlace() if place is None else place
    overrides = {**default_overrides(), **place_environment(arm, place, sys.executable, os.environ)}
    caches = {name: folder for name, folder in place.caches.items() if name in CACHE_FOLDERS}
    if arm.command is None:
        words = generate_words(arm, cell, perf_dump, output_dir)
        return SlotCommand((*program_words(place), *words), overrides, True, caches=caches)
    argv = filled_template(arm, str(perf_dump), str(output_dir), place, cell)
    return SlotCommand(argv, overrides, "output_dir" in placeholders(arm), place.tree, caches)


def program_words(place: ArmPlace) -> tuple[str, ...]:
    """How a flags arm starts ``generate``; ``-P`` keeps the present folder from standing before the arm's own tree."""
    is_own_code = place.tree is None and place.python is None
    safe_path = () if is_own_code else ("-P",)
    return (place.python or sys.executable, *safe_path, "-m", "fuseproof", "generate")


def generate_words(arm: Arm, cell: Cell, perf_dump: Path, output_dir: Path) -> tuple[str, ...]:
    """Every argument of a flags arm's ``fuseproof generate``: the cell's flags, its own, and where results belong."""
    words = (*shared_words(cell.flags), *shared_words(arm.flags))
    return (*words, "--perf-dump-path", str(perf_dump), "--output-path", str(output_dir))


def shared_words(flags: str) -> tuple[str, ...]:
    """Flags as the words that a slot gets: ``{plan_dir}`` and ``~`` stand for folders no more."""
    return tuple(_expanded(with_plan_dir(word, PLANS_FOLDER)) for word in shlex.split(flags))


def filled_template(
    arm: Arm, perf_dump: str, output_dir: str, place: ArmPlace | None = None, cell: Cell | None = None
) -> tuple[str, ...]:
    """A command arm's words with its placeholders filled; :class:`UsageError` for an unknown placeholder.

    Without a ``cell``, ``{flags}`` stands as it is.
    """
    placeholders(arm)
    place = ArmPlace() if place is None else place
    values = {"perf_dump": perf_dump, "output_dir": output_dir}
    values |= {"python": place.python or sys.executable, "tree": str(place.tree)}
    words: list[str] = []
    for word in shlex.split(arm.command or ""):
        if word == CELL_FLAGS:
            words += (CELL_FLAGS,) if cell is None else shared_words(cell.flags)
        else:
            words.append(_filled(_expanded(with_plan_dir(word, PLANS_FOLDER)), values))
    return tuple(words)


def takes_flags(arm: Arm) -> bool:
    """Whether a cell's flags reach the arm: those of `generate` always, a command with ``{flags}``."""
    return arm.command is None or CELL_FLAGS in shlex.split(arm.command)


def default_overrides() -> dict[str, str]:
    """The environment every slot gets unless its arm says otherwise.

    One core is left to the rest of the machine: a slot on all cores runs many times slower as soon as one other
    process is busy. diffusers' splitting of quotations depends on the hash seed.
    """
    return {"OMP_NUM_THREADS": str(max(1, len(usable_cores()) - 1)), "PYTHONHASHSEED": "0"}


def placeholders(arm: Arm) -> set[str]:
    """The placeholders a command arm uses; :class:`UsageError` for one that does not exist."""
    found = set()
    words = (word.replace(PLAN_DIR, "") for word in shlex.split(arm.command or ""))
    template = " ".join(word for word in words if word != CELL_FLAGS)
    for match in _PLACEHOLDER.finditer(template):
        name = match["name"]
        if name is None:
            continue
        if name not in PLACEHOLDERS and (name not in ARM_PLACEHOLDERS or (name == "tree" and arm.ref is None)):
            own = ARM_PLACEHOLDERS if arm.ref is not None else ()
            names = [f"{{{known}}}" for known in (*PLACEHOLDERS, *own)]
            allowed = f"{', '.join(names)}, {PLAN_DIR} in a plan file, and {CELL_FLAGS} as a word of its own"
            raise UsageError(
                f"The command of arm {arm.name!r} uses {{{name}}}; the placeholders are {allowed}.",
                next_step=f"Write {{{{{name}}}}} if the braces are meant literally.",
            )
        found.add(name)
    return found


def check_arms(plan: Plan, working_directory: Path | None = None) -> None:
    """Refuse what cannot be measured: a template without a perf dump, a missing program, twice the same command.

    Relative programs are looked up from ``working_directory``, where the slots run; None is the present folder.
    """
    folder = working_directory or Path.cwd()
    for arm in plan.arms.all:
        place = ArmPlace() if arm.ref is not None else ArmPlace(python=interpreter(arm, None, folder))
        refuse_missing_interpreter(arm, place)
        if arm.command is not None:
            _check_template(arm, place, folder)
    identities = [_identity(arm) for arm in plan.arms.all]
    twice = [key for key, identity in zip(plan.arms.by_key, identities, strict=True) if identities.count(identity) > 1]
    if plan.aa or not twice:
        return
    if len(identities) > 2:
        raise UsageError(
            f"The arms {' and '.join(twice)} are the same command, so any difference between them would be noise.",
            next_step="Change one of them, or leave it out.",
        )
    raise UsageError(
        "Baseline and candidate are the same command, so any difference between them would be noise.",
        next_step="Change one arm, or pass --aa to measure what the noise of this machine looks like.",
    )


def portable(plan: Plan) -> Plan:
    """The plan with ``~`` for the home folder, as it is stored; :class:`UsageError` when it holds a secret."""
    return plan.model_copy(
        update={
            "arms": plan.arms.changed(_portable_arm),
            "cells": tuple(
                cell.model_copy(update={"flags": _portable_words(cell.flags, f"cell {cell.name}")})
                for cell in plan.cells
            ),
        }
    )


def recorded_argv(argv: Sequence[str], campaign_directory: Path) -> tuple[str, ...]:
    """A command as it is kept on disk: without secrets and home folder, campaign paths relative to the campaign."""
    prefix = f"{campaign_directory}{os.sep}"
    return tuple(redact(word.replace(prefix, "")) for word in argv)


def _check_template(arm: Arm, place: ArmPlace, working_directory: Path) -> None:
    if "perf_dump" not in placeholders(arm) and arm.time_pattern is None:
        raise UsageError(
            f"The command of arm {arm.name!r} has no {{perf_dump}}, so its times could not be read.",
            next_step="Tell the program where to write its perf dump, for example --perf-dump-path {perf_dump}; of one "
            "that only prints its time, say where with --time-pattern (in a plan: time_pattern).",
        )
    if arm.ref is None:
        refuse_missing_program(arm, place, working_directory)


def refuse_missing_interpreter(arm: Arm, place: ArmPlace) -> None:
    """Raise :class:`UsageError` unless an arm's own ``python`` is a program; of a ref, once its tree is there."""
    if place.python is not None and not os.access(place.python, os.X_OK):
        raise UsageError(
            f"The python of arm {arm.name!r} is {redact(place.python)}, which is no program on this machine.",
            next_step="Check the path; a relative one is looked up in the arm's tree, after its setup.",
        )


def refuse_missing_program(arm: Arm, place: ArmPlace, working_directory: Path) -> None:
    """Raise :class:`UsageError` unless an arm's command starts a program; of a ref, once its tree is there.

    A script that an interpreter is given must be there too.
    """
    results = ("perf.json", "outputs")
    words = filled_template(arm, *results, place)
    program, folder = words[0], place.tree or working_directory
    found = str(folder / program) if os.sep in program else program
    path = place_environment(arm, place, sys.executable, os.environ).get("PATH")
    if shutil.which(found, path=path) is None:
        raise UsageError(
            f"The command of arm {arm.name!r} starts {redact(program)!r}, which is no program on this machine.",
            next_step="Check the spelling, the path and that the file is executable.",
        )
    known = next((index for index, word in enumerate(words) if word in (CELL_FLAGS, *results)), len(words))
    refuse_missing_script(arm, words[:known], folder)


def _identity(arm: Arm) -> tuple[object, ...]:
    """What decides what an arm runs: ``--flag=value`` and ``--flag value`` are the same."""
    words = [part for word in shlex.split(arm.flags) for part in _flag_parts(word)]
    command = None if arm.command is None else tuple(shlex.split(arm.command))
    source = (arm.ref, arm.repo, arm.setup, arm.python, arm.time_pattern)
    return (tuple(words), command, tuple(sorted(arm.env.items())), source)


def _flag_parts(word: str) -> Sequence[str]:
    return word.split("=", 1) if word.startswith("--") and "=" in word else (word,)


def _filled(word: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return f"{{{match['literal']}}}" if match["literal"] else values[match["name"]]

    return _PLACEHOLDER.sub(value, word)


def _expanded(word: str) -> str:
    """``~/x`` and ``--flag=~/x`` with the home folder in place; a ``~`` anywhere else is left alone."""
    head, path = _head_and_path(word)
    return head + str(Path(path).expanduser()) if path == "~" or path.startswith("~/") else word


def _head_and_path(word: str) -> tuple[str, str]:
    flag, separator, value = word.partition("=")
    return (flag + separator, value) if flag.startswith("-") and separator else ("", word)


def _portable_arm(arm: Arm) -> Arm:
    command = None if arm.command is None else _portable_words(arm.command, f"command of arm {arm.name!r}")
    for key, value in arm.env.items():
        _refuse_secret(f"--{key}={value}", f"environment of arm {arm.name!r}")
    _refuse_secret(arm.setup or "", f"setup of arm {arm.name!r}")
    _refuse_secret(arm.time_pattern or "", f"time_pattern of arm {arm.name!r}")
    places = {key: value and _with_tilde(value) for key, value in (("repo", arm.repo), ("python", arm.python))}
    flags = _portable_words(arm.flags, f"flags of arm {arm.name!r}")
    return arm.model_copy(update={"flags": flags, "command": command, **places})


def _portable_words(text: str, where: str) -> str:
    _refuse_secret(text, where)
    words = shlex.split(text)
    shortened = [_with_tilde(word) for word in words]
    return text if shortened == words else shlex.join(shortened)


def _with_tilde(word: str) -> str:
    home = str(Path("~").expanduser()).rstrip("/")
    head, path = _head_and_path(word)
    if len(home) > 1 and (path == home or path.startswith(f"{home}/")):
        return head + "~" + path[len(home) :]
    return word


def _refuse_secret(text: str, where: str) -> None:
    if REDACTED in redact(text) and REDACTED not in text:
        raise UsageError(
            f"The text of the {where} holds what looks like a secret, and a campaign folder is made to be shared.",
            next_step="Set it as an environment variable in the shell: slots inherit the environment.",
        )
