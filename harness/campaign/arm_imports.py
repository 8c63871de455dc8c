"""Which file an arm really imports: asked of its own interpreter, in its own environment, before slot 1.

An editable install, a ``PYTHONPATH`` of the shell or a leftover build can win over the tree that an arm was meant to
run; every time it would then be given for is another program's.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.arm_places import ArmPlace, place_environment
from fuseproof.harness.campaign.worktrees import Worktree
from fuseproof.harness.machine.redaction import redact
from fuseproof.schedules.order import arm_word
from fuseproof.schedules.plan import Arm, Plan

IMPORT_LIMIT_S = 300.0
MARK = "fuseproof-module: "
_QUESTION = (
    "import importlib, json, sys; sys.path[:0] = sys.argv[2:]; m = importlib.import_module(sys.argv[1]); "
    f"print('\\n{MARK}' + json.dumps(getattr(m, '__file__', None) or [*m.__path__][0]))"
)


def imported_module(arm: Arm, module: str, place: ArmPlace, working_directory: Path) -> Path:
    """The file of ``module`` as the arm's slots import it, with links resolved.

    Raises :class:`UsageError` naming both paths when the arm has a tree and the file lies outside of it, and
    :class:`FuseproofError` with the interpreter's last line when it cannot be imported.
    """
    where = place.tree if place.tree is not None and arm.command is not None else working_directory
    python = place.python or sys.executable
    environment = {**os.environ, **place_environment(arm, place, sys.executable, os.environ)}
    argv = [python, "-P", "-c", _QUESTION, module, *_first_folders(arm, place, where)]
    try:
        answer = subprocess.run(
            argv,
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FuseproofError(f"The Python of arm {arm.name!r} cannot import {module}: {redact(str(error))}.") from error
    told = [line.removeprefix(MARK) for line in answer.stdout.splitlines() if line.startswith(MARK)]
    if answer.returncode != 0 or not told:
        lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()] or ["it gives no reason"]
        raise FuseproofError(
            f"The Python of arm {arm.name!r}, {redact(python)}, cannot import {module}: {redact(lines[-1])}.",
            next_step="Let `setup` install what it needs, or name another `python`.",
        )
    file = Path(json.loads(told[-1])).resolve()
    if place.tree is not None and not file.is_relative_to(place.tree.resolve()):
        raise UsageError(
            f"Arm {arm.name!r} would import {module} from {redact(str(file))}, not from its tree "
            f"{redact(str(place.tree))}.",
            next_step="Install the tree in `setup` into a Python of its own, or put it on PYTHONPATH in `env`.",
        )
    return file


def refuse_shared_module(plan: Plan, worktrees: Mapping[str, Worktree], modules: Mapping[str, Path]) -> None:
    """Raise :class:`UsageError` when two arms import the same file although their code is what should differ.

    Two arms of one ref, or with different flags or commands of their own, may share their code.
    """
    for first, second in combinations(modules, 2):
        one, other = plan.arm(first), plan.arm(second)
        is_one_ref = first in worktrees and second in worktrees and one.ref == other.ref
        has_tree = first in worktrees or second in worktrees
        is_other_work = not has_tree and (one.flags, one.command) != (other.flags, other.command)
        if modules[first] != modules[second] or is_one_ref or is_other_work:
            continue
        raise UsageError(
            f"Both arms import {redact(str(modules[first]))}: {arm_word(first)} and {arm_word(second)} are the same "
            "code.",
            next_step="Give each arm an environment in which its own code is found, or pass --aa to measure the noise.",
        )


def _first_folders(arm: Arm, place: ArmPlace, where: Path) -> list[str]:
    """What Python itself puts first on its path for this command: the folder of ``-m`` or of the script."""
    if arm.command is None:
        return []
    words = [place.filled(word, sys.executable) for word in shlex.split(arm.command)]
    if "-P" in words:
        return []
    if "-m" in words[1:3]:
        return [str(where)]
    scripts = [word for word in words[:6] if word.endswith(".py")]
    return [str((where / scripts[0]).resolve().parent)] if scripts else []
