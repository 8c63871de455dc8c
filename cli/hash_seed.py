"""Python's string hashing, fixed for a run: diffusers splits quotations by looping over a set, so it decides pixels.

A prompt with two different contractions gives another picture for each ``PYTHONHASHSEED``. The variable only counts
when the interpreter starts, hence one restart of the same command, before torch is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

FIXED_SEED = "0"
MARKER = "FUSEPROOF_HASH_SEED_FIXED"
"""Set for the restarted process, so that the dump can tell our choice from the user's."""


def restart_with_fixed_hash_seed(command: str, arguments: Sequence[str]) -> None:
    """Replace this process by the same command with ``PYTHONHASHSEED=0``, unless the variable is set already.

    Does nothing when the program was called from Python with other arguments than the process was started with.
    """
    was_started_as_this = sys.argv[1:] == [command, *arguments]
    if os.environ.get("PYTHONHASHSEED") or not was_started_as_this:
        return
    os.environ["PYTHONHASHSEED"] = FIXED_SEED
    os.environ[MARKER] = "1"
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def hash_seed_record() -> dict[str, str | None]:
    """The seed in force and who chose it, for a dump's ``environment``."""
    seed = os.environ.get("PYTHONHASHSEED") or None
    chosen_by = None if seed is None else "fuseproof" if os.environ.get(MARKER) else "user"
    return {"python_hash_seed": seed, "python_hash_seed_chosen_by": chosen_by}


def hash_seed_warning() -> str | None:
    """Why this process may give other pixels than the next one; None when it will not."""
    seed = os.environ.get("PYTHONHASHSEED") or "unset"
    if seed.isdecimal():
        return None
    return f"PYTHONHASHSEED is {seed}: prompts with two contractions may give another image in every process."
