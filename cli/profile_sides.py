"""The two sides of ``profile --before A --after B``: existing profiles, or requests run one after the other."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.cli.arm_logs import last_words
from fuseproof.cli.profile_folders import PROFILE_FILE, claimed, free_folder
from fuseproof.cli.profile_options import ProfileOptions, request_words
from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    from fuseproof.harness.profiles.profile import Profile

SIDES = ("before", "after")
COMPARISON_FILE = "before-after.json"
SECONDS_TO_END = 10
OWN_LINE = b"fuseproof: "
"""How a line of ours begins; what the libraries print is in the log only."""


def both_profiles(options: ProfileOptions, say: Callable[[str], None]) -> tuple[Profile, Profile, Path | None]:
    """Both profiles, and the folder that the comparison belongs into; None where nothing is written.

    Sides given as flags run in fresh processes, one after the other. Both are checked before either runs.
    """
    from fuseproof.harness.profiles.comparison_files import refuse_other_side
    from fuseproof.harness.profiles.places import expanded
    from fuseproof.harness.profiles.reading import read_profile

    texts = dict(zip(SIDES, (options.before or "", options.after or ""), strict=True))
    words = {side: _words(options, side, text) for side, text in texts.items()}
    runs = {side: found for side, found in words.items() if found is not None}
    if options.flags is not None and not runs:
        raise UsageError("--flags has no effect on profiles that exist already.", next_step="Drop it.")
    if not runs:
        options.refuse_capture_flags()
    for side, found in runs.items():
        _refuse_bad_flags(side, found)
    existing = {side: read_profile(expanded(texts[side])) for side in SIDES if side not in runs}
    folder, taken = None, (COMPARISON_FILE, *(f"{side}/{PROFILE_FILE}" for side in runs))
    if runs or options.output_path is not None:
        folder = free_folder(options.output_path, taken)
        for side, profile in existing.items():
            refuse_other_side(folder, side, profile)
    if folder is not None and runs:
        with claimed(folder, taken):
            for side, found in runs.items():
                say(f"profiling {side}: {shlex.join(found)}")
                _run(side, found, folder / side, options, say)
                existing[side] = read_profile(folder / side)
    return existing["before"], existing["after"], folder


def _words(options: ProfileOptions, side: str, text: str) -> tuple[str, ...] | None:
    """The flags of a side; None where it is a profile that exists."""
    from fuseproof.harness.campaign.arms import shared_words
    from fuseproof.harness.profiles.places import exists, expanded

    if text.strip() and exists(expanded(text)):
        return None
    if text.strip() and not text.lstrip().startswith("-"):
        raise UsageError(
            f"--{side} is {text!r}: no profile is there, and flags of `generate` begin with a dash.",
            next_step="Give profile.json, its folder, or flags in quotes.",
        )
    try:
        return (*shared_words(options.flags or ""), *shared_words(text))
    except ValueError as error:
        raise UsageError(
            f"the flags of --{side} cannot be split into words: {error}.", next_step="Close the quotation marks."
        ) from error


def _refuse_bad_flags(side: str, words: Sequence[str]) -> None:
    from fuseproof.cli.abba_arms import refusal
    from fuseproof.cli.profile_capture import parsed_request

    try:
        parsed_request(request_words(words))
    except FuseproofError as error:
        raise refusal(f"--{side}", error) from error


def _run(side: str, words: Sequence[str], folder: Path, options: ProfileOptions, say: Callable[[str], None]) -> None:
    """Profile one side in a fresh process, which says how far it is; raises :class:`FuseproofError` with its own last
    words. All that it prints goes into a log beside ``folder``.
    """
    from fuseproof.harness.campaign.arms import default_overrides

    command = [sys.executable, "-m", "fuseproof", "profile", *words, "--output-path", str(folder)]
    command += [
        "--steps",
        str(options.profiled_steps),
        f"--profile-all-stages={str(options.profile_all_stages).lower()}",
    ]
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.parent / f"{side}.log"
    with log.open("wb", buffering=0) as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.PIPE,
            env={**os.environ, **default_overrides()},
        )
        try:
            for line in process.stderr or ():
                stream.write(line)
                if line.startswith(OWN_LINE):
                    say(f"{side}: {line.removeprefix(OWN_LINE).decode(errors='replace').strip()}")
            status = process.wait()
        except BaseException:
            _end(process)  # interrupted: nothing that we started goes on
            raise
    if status != 0:
        raise FuseproofError(
            f"profiling {side} ended with status {status}: {last_words(log)}.",
            next_step=f"{log} has all that it printed.",
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, which takes back what it has half done where it still can."""
    process.terminate()
    try:
        process.communicate(timeout=SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
