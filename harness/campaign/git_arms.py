"""Arms of git refs and of other interpreters, from the plan to places where slots can run.

Three steps: refs become commits (:func:`resolve_arms`, nothing is written), commits become places
(:func:`planned_places`, pure), and places are made and proved (:func:`prepare_arms`): the tree is checked out and set
up, the interpreter is there, and the module that an arm imports lies in its own tree.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.arm_caches import cache_variables
from fuseproof.harness.campaign.arm_imports import imported_module, refuse_shared_module
from fuseproof.harness.campaign.arm_lineage import ArmLineage, plain_lineage
from fuseproof.harness.campaign.arm_places import ArmPlace, interpreter, place_environment
from fuseproof.harness.campaign.arms import refuse_missing_interpreter, refuse_missing_program
from fuseproof.harness.campaign.git_repository import open_repository
from fuseproof.harness.campaign.worktrees import Setup, Worktree, make, worktree_of
from fuseproof.harness.machine.redaction import redact
from fuseproof.schedules.plan import Arm, Plan

OWN_MODULE = "fuseproof"


@dataclass(frozen=True)
class PreparedArms:
    """What the slots need, by arm letter. ``setup_logs`` are files outside the campaign; ``remarks`` are for people."""

    places: Mapping[str, ArmPlace] = field(default_factory=dict)
    lineage: Mapping[str, ArmLineage] = field(default_factory=dict)
    setup_logs: Mapping[str, Path] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def resolve_arms(
    plan: Plan, working_directory: Path, earlier: Mapping[str, ArmLineage] | None = None
) -> dict[str, Worktree]:
    """The commit of every arm with a ref, and where its tree belongs. Reads the repository and writes nothing.

    A resumed campaign gives its ``earlier`` lineage, and keeps the commits in it. Raises :class:`UsageError` for an
    unknown ref, no repository, or two refs that are one commit.
    """
    found: dict[str, Worktree] = {}
    for letter in plan.letters:
        arm = plan.arm(letter)
        if arm.ref is None:
            continue
        before = (earlier or {}).get(letter)
        repository = open_repository(_repository_folder(arm, before, working_directory))
        commit = repository.resolve(before.commit if before and before.commit else arm.ref)
        found[letter] = worktree_of(repository, commit, _setup_key(arm))
    if not plan.aa:
        _refuse_one_commit(plan, found)
    return found


def planned_places(
    plan: Plan, worktrees: Mapping[str, Worktree], space: Path, working_directory: Path
) -> dict[str, ArmPlace]:
    """Where each arm will run, with caches of its own in ``space``; nothing when both arms are plain."""
    if not worktrees and all(plan.arm(letter).python is None for letter in plan.letters):
        return {}
    places: dict[str, ArmPlace] = {}
    for letter in plan.letters:
        arm, worktree = plan.arm(letter), worktrees.get(letter)
        tree = None if worktree is None else worktree.tree
        caches = cache_variables(space / letter, os.environ)
        own = {name: value for name, value in caches.items() if name not in arm.env}
        commit = None if worktree is None else worktree.commit
        places[letter] = ArmPlace(tree, commit, interpreter(arm, tree, working_directory), own)
    return places


def prepare_arms(plan: Plan, worktrees: Mapping[str, Worktree], space: Path, working_directory: Path) -> PreparedArms:
    """Make trees, run setups, and prove what each arm imports, before slot 1.

    Raises :class:`FuseproofError` for what cannot be made and :class:`UsageError` for an arm that would run other
    code than its ref.
    """
    places = planned_places(plan, worktrees, space, working_directory)
    lineage: dict[str, ArmLineage] = {}
    logs: dict[str, Path] = {}
    modules: dict[str, Path] = {}
    for letter in plan.letters:
        arm, place = plan.arm(letter), places.get(letter, ArmPlace())
        worktree = worktrees.get(letter)
        known = plain_lineage(arm, working_directory) if worktree is None else _made(arm, worktree, place, logs, letter)
        refuse_missing_interpreter(arm, place)
        if worktree is not None and arm.command is not None:
            refuse_missing_program(arm, place, working_directory)
        module = arm.imports or (OWN_MODULE if arm.command is None and letter in places else None)
        if module is not None:
            file = imported_module(arm, module, place, working_directory)
            modules[letter] = file
            known = replace(known, module=module, module_file=_shown_file(file, place))
        lineage[letter] = replace(known, python=None if place.python is None else redact(place.python))
    if not plan.aa:
        refuse_shared_module(plan, worktrees, modules)
    remarks = (*_remarks(plan, lineage), *unmeasured_changes(plan, worktrees))
    return PreparedArms(places, lineage, logs, remarks)


def unmeasured_changes(plan: Plan, worktrees: Mapping[str, Worktree]) -> list[str]:
    """Sentences about arms whose ref is the HEAD of a checkout with changed files, which are not measured.

    Untracked files do not count: campaigns themselves are some.
    """
    told: dict[str, list[str]] = {}
    for letter, worktree in worktrees.items():
        state = worktree.repository.state()
        if state.changed and state.commit == worktree.commit:
            more = f" and {len(state.changed) - 1} more" if len(state.changed) > 1 else ""
            changes = (
                f"commit {worktree.commit[:12]}, and the checkout has changes that are not committed "
                f"({state.changed[0]}{more}): they are not measured; commit them, or name a ref that has them"
            )
            told.setdefault(changes, []).append(f"arm {plan.arm(letter).name!r} ({plan.arm(letter).ref})")
    return [f"{' and '.join(arms)} {'is' if len(arms) == 1 else 'are'} {changes}" for changes, arms in told.items()]


def moved_refs(plan: Plan, worktrees: Mapping[str, Worktree]) -> list[str]:
    """Sentences about refs that have moved since the campaign began; its slots keep their commits."""
    told = []
    for letter, worktree in worktrees.items():
        ref = plan.arm(letter).ref or ""
        try:
            now = worktree.repository.resolve(ref)
        except UsageError:
            now = None
        if now != worktree.commit:
            where = "is gone" if now is None else f"is now {now[:12]}"
            told.append(f"{ref} {where}; this campaign goes on with {worktree.commit[:12]}, where it began")
    return told


def _repository_folder(arm: Arm, before: ArmLineage | None, working_directory: Path) -> Path:
    text = arm.repo or (before.repo if before is not None else None)
    try:
        return working_directory if text is None else working_directory / Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"repo is {text!r}, and there is no such home folder.", next_step="Give its path.") from error


def _setup_key(arm: Arm) -> str | None:
    return None if arm.setup is None else f"{arm.setup}\0{arm.python or ''}\0{sorted(arm.env.items())}"


def _refuse_one_commit(plan: Plan, worktrees: Mapping[str, Worktree]) -> None:
    for first, second in combinations(worktrees, 2):
        one, other = plan.arm(first), plan.arm(second)
        if worktrees[first].commit != worktrees[second].commit or one.ref == other.ref:
            continue
        raise UsageError(
            f"{one.ref} and {other.ref} are the same commit, {worktrees[first].commit[:12]}, so both arms would "
            "run the same code.",
            next_step="Name another ref, or pass --aa to measure the noise; if only flags differ, give both one ref.",
        )


def _made(arm: Arm, worktree: Worktree, place: ArmPlace, logs: dict[str, Path], letter: str) -> ArmLineage:
    variables = place_environment(arm, replace(place, caches={}), sys.executable, os.environ)
    setup = None if arm.setup is None else Setup(arm.setup, arm.setup_timeout_s, variables)
    try:
        record = make(worktree, setup)
    except FuseproofError as error:
        error.message = f"Arm {letter} ({arm.name!r}, {arm.ref}): {error.message}"
        raise
    if record is not None:
        logs[letter] = worktree.log
        record = replace(record, log=f"setup/{letter}.log")
    repository = worktree.repository
    return ArmLineage(
        repo=redact(str(repository.top)),
        remote=repository.remote_url(),
        ref=arm.ref,
        commit=worktree.commit,
        is_dirty=False,
        tree=redact(str(worktree.tree)),
        submodules=repository.submodules(worktree.commit),
        setup=record,
    )


def _shown_file(file: Path, place: ArmPlace) -> str:
    if place.tree is not None and file.is_relative_to(place.tree.resolve()):
        return file.relative_to(place.tree.resolve()).as_posix()
    return redact(str(file))


def _remarks(plan: Plan, lineage: Mapping[str, ArmLineage]) -> list[str]:
    return [
        f"the tree of {known.ref} leaves {len(known.submodules)} submodules empty ({known.submodules[0]}); a setup of "
        "`git submodule update --init --recursive` fills them"
        for letter, known in lineage.items()
        if known.submodules and "submodule" not in (plan.arm(letter).setup or "")
    ]
