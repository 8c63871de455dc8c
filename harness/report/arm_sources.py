"""Where the arms' code came from, for Setup and Reproduce: ref, commit, repository, setup, imported module."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from fuseproof.harness.analysis.runs import CellRuns
from fuseproof.harness.campaign.arm_caches import CACHE_VARIABLES
from fuseproof.harness.campaign.arm_lineage import ArmLineage, short_commit
from fuseproof.harness.campaign.arm_programs import program_versions, short_contents
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.number_format import shortened
from fuseproof.harness.report.document import Code, Text

REF_FLAGS = {"--baseline-ref": "A", "--candidate-ref": "BCDEFGH"}
"""Flag → the letters of the arms that it names, in the order in which it is given."""
PLACE_VARIABLES = frozenset({*CACHE_VARIABLES, "PYTHONPATH", "PATH"})
"""Set for an arm in a place of its own; their values are paths of one machine."""
DEVICE_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})
"""Set for a slot of a block that was given one GPU of one machine."""
WEIGHTS_VARIABLES = frozenset({"HF_HUB_OFFLINE", "HF_HUB_CACHE"})
"""Set because the weights were fetched before slot 1; who repeats one run fetches them with it."""


def source_rows(
    lineage: Mapping[str, ArmLineage], limit: int, letters: Sequence[str] = ("A", "B")
) -> list[tuple[Text, ...]]:
    """Rows of the Setup table: source, setup, module and Python, where any arm has one."""
    known = [lineage.get(letter, ArmLineage()) for letter in letters]
    rows: list[tuple[Text, ...]] = []
    if any(arm.ref for arm in known):
        rows.append(("Source", *(_source(arm, limit) for arm in known)))
    if any(arm.setup for arm in known):
        rows.append(("Set-up", *(_setup(arm, limit) for arm in known)))
    if any(arm.ref and arm.module for arm in known):
        rows.append(("Imports", *(Code(shortened(f"{arm.module}: {arm.module_file}", limit)) for arm in known)))
    if any(arm.python for arm in known):
        rows.append(("Python", *(Code(shortened(arm.python or "this one", limit)) for arm in known)))
    return rows


def program_rows(cells: Sequence[CellRuns], limit: int, letters: Sequence[str]) -> list[tuple[Text, ...]]:
    """The row of the files that the arms' commands named, with the first digits of their SHA-256; none without any.

    ``cells`` are those of every candidate, so an arm's runs are those of the cells that hold it.
    """
    found = {letter: _programs(cells, letter, limit) for letter in letters}
    return [("Files of the command", *(found[letter] or "none" for letter in letters))] if any(found.values()) else []


def shown_overrides(slot: SlotRecord) -> dict[str, str]:
    """The variables set for a slot without those that only say where on this machine its arm lives."""
    hidden = {*WEIGHTS_VARIABLES, *(PLACE_VARIABLES if slot.caches else ())}
    hidden |= DEVICE_VARIABLES if slot.device else frozenset()
    return {name: value for name, value in slot.environment_overrides.items() if name not in hidden}


def with_commits(command: Sequence[str], lineage: Mapping[str, ArmLineage]) -> list[str]:
    """The campaign's command with the commit that each ref was, because refs move."""
    words: list[str] = []
    previous = ""
    left = {flag: iter(letters) for flag, letters in REF_FLAGS.items()}
    for word in command:
        flag, separator, _ = word.partition("=")
        letters = left.get(previous) or (left.get(flag) if separator else None)
        letter = None if letters is None else next(letters, None)
        commit = lineage[letter].commit if letter is not None and letter in lineage else None
        words.append(word if commit is None else f"{flag}={commit}" if separator and flag in REF_FLAGS else commit)
        previous = word
    return words


def tree_line(slot: SlotRecord) -> tuple[str, ...]:
    """What a reader needs before one run of a ref: a tree of its commit."""
    lineage = slot.lineage or {}
    if not lineage.get("ref"):
        return ()
    where = _repository(lineage["remote"]) if lineage.get("remote") else ""
    there = "" if _runs_our_code(slot) else ", in which the program below was started"
    return (f"# TREE: a clean checkout{where} at {lineage['commit']}{there}",)


def tree_prefix(slot: SlotRecord) -> str:
    """What stands before the command of one run of a ref of ours, so that it imports the tree's code."""
    return 'PYTHONPATH="$TREE" ' if tree_line(slot) and _runs_our_code(slot) else ""


def _programs(cells: Sequence[CellRuns], letter: str, limit: int) -> str:
    slots = {slot.id: slot for cell in cells for slot in cell.slots if slot.arm == letter}
    versions = program_versions(slots.values())
    told = (f"{name} {', '.join(map(short_contents, known))}" for name, known in versions.items())
    return shortened("; ".join(told), limit)


def _runs_our_code(slot: SlotRecord) -> bool:
    return list(slot.command[1:4]) == ["-P", "-m", "fuseproof"]


def _source(arm: ArmLineage, limit: int) -> Text:
    if arm.commit is None:
        return shortened(arm.reason or "not recorded", limit)
    commit = short_commit(arm.commit, arm.is_dirty, arm.diff_sha256)
    where = _repository(shortened(arm.remote, limit)) if arm.remote else ""
    empty = f", {len(arm.submodules)} submodules" if arm.submodules else ""
    return (Code(shortened(arm.ref, limit)) if arm.ref else "checkout", " = ", Code(commit), f"{where}{empty}")


def _repository(remote: str) -> str:
    """`` of`` the remote; of one that is a folder of the author's, its name in words, lest it be read as a branch."""
    path = remote.removeprefix("file://")
    is_local = path.startswith(("/", "~", "./", "../")) or re.match(r"[A-Za-z]:[\\/]", path) is not None
    name = PurePosixPath(path.replace("\\", "/")).name
    return f" of a local repository (its folder is called {name!r})" if is_local and name else f" of {remote}"


def _setup(arm: ArmLineage, limit: int) -> Text:
    if arm.setup is None:
        return "none"
    return (Code(shortened(arm.setup.command, limit)), f", status {arm.setup.exit_code}, {arm.setup.seconds:.1f} s")
