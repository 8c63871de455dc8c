"""What arms and campaigns are called: ``--baseline-name``, ``--candidate-name``, and names made of what is compared."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from fuseproof.cli.abba_candidates import all_given
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.cli.abba_options import AbbaOptions

DEFAULT_NAME = "abba"
LONGEST_NAME = 64
Arms = dict[str, dict[str, Any]]


def with_names(options: AbbaOptions, arms: Arms) -> Arms:
    """The arms with the names of the command line; :class:`UsageError` for more names than candidates."""
    names = all_given(options, "candidate_name")
    candidates = [key for key in arms if key != "baseline"]
    if len(names) > len(candidates):
        raise UsageError(
            f"--candidate-name was given {len(names)} times, and the number of candidates is {len(candidates)}.",
            next_step="Give it once for every candidate, in their order.",
        )
    own = dict(zip(candidates, names, strict=False))
    if options.baseline_name is not None:
        own["baseline"] = options.baseline_name
    return {key: arm | ({"name": own[key]} if key in own else {}) for key, arm in arms.items()}


def campaign_name(options: AbbaOptions) -> str:
    """Of a campaign without a PLAN and a ``--name``: its arms' names, its refs, or its programs; else ``abba``."""
    baseline = _word_for(options.baseline_name, options.baseline_ref, options.baseline_command)
    if options.aa:
        return _slug(f"{baseline}-aa") if baseline else DEFAULT_NAME
    names, refs, commands = (list(all_given(options, f"candidate_{what}")) for what in ("name", "ref", "command"))
    number = max(len(names), len(refs), len(commands))
    candidates = [_word_for(*(_at(found, index) for found in (names, refs, commands))) for index in range(number)]
    words = list(dict.fromkeys([baseline, *candidates]))
    if not candidates or not all(words):
        return DEFAULT_NAME
    return _slug("-vs-".join(word for word in words if word))


def has_names(options: AbbaOptions) -> bool:
    """Whether the command line names an arm."""
    return options.baseline_name is not None or options.candidate_name is not None


def has_telling_names(arms: Arms) -> bool:
    """Whether the arms' names say more than their roles do."""
    return any(arm["name"] not in ("baseline", "candidate") for arm in arms.values())


def title_of(arms: Arms) -> str:
    """``fast paths off against fast paths auto``: the arms by their names."""
    baseline, *candidates = (str(arm["name"]) for arm in arms.values())
    return f"{baseline} against {', '.join(candidates)}"


def _word_for(name: str | None, ref: str | None, command: str | None) -> str | None:
    """One arm in a word or a few; None where only flags tell it from the other."""
    return name or ref or (None if command is None else _program(command))


def _program(command: str) -> str | None:
    """``old`` of ``python3 -u tools/old.py {perf_dump}``: the script without its suffix, else the program."""
    from fuseproof.harness.campaign.arm_programs import script_of

    try:
        words = shlex.split(command)
    except ValueError:
        return None
    module = words[words.index("-m") + 1 : words.index("-m") + 2] if "-m" in words else []
    word = script_of(words) or next(iter(module), None) or next(iter(words), "")
    return PurePath(word).stem or None


def _at(values: list[str], index: int) -> str | None:
    return values[index] if index < len(values) else None


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:LONGEST_NAME].rstrip("-._") or DEFAULT_NAME
