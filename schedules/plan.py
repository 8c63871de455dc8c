"""Run plans: which cells, which arms, how many blocks, which contract. Pure data, read from TOML.

A plan says everything that decides what a campaign measures. It is stored in the campaign folder, and a campaign is
resumed only under the plan it began with.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator, model_validator

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.schedules.ablation import Ablation, problem_of_arms
from fuseproof.schedules.arms import Arm, Arms, Name, Strict, checked_flags
from fuseproof.schedules.cell_references import problem_of_references
from fuseproof.schedules.contracts import parse_contract
from fuseproof.schedules.order import ArmLetter, Orientation, letters_of, orientation
from fuseproof.schedules.qualification import Requirement, parse_requirements

__all__ = ["Arm", "Arms", "Cell", "Name", "Plan", "built_in_plans", "load_plan", "plan_from", "with_plan_dir"]

Primary = Literal["worker", "denoise", "client"]
DEFAULT_PLAN = "embedded"
PLANS_FOLDER = Path(__file__).resolve().parent / "plans"
PLAN_DIR = "{plan_dir}"
"""The folder of the plan file, in its texts. A built-in plan keeps it, so that a campaign moves between machines."""

_NAME_RULE = "a name is 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first"


def _as_fraction(value: object) -> object:
    """``"1%"`` and ``0.01`` are the same minimum effect."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100.0
        except ValueError as error:
            raise ValueError(f"{value!r} is no percentage; write 1% or 0.01") from error
    return value


BlockCount = Annotated[int, Field(ge=1, le=1000, strict=True)]
Fraction = Annotated[float, BeforeValidator(_as_fraction), Field(ge=0.0, lt=1.0, allow_inf_nan=False)]


class Cell(Strict):
    """One workload: the request flags both arms share, and the contract its outputs must keep.

    ``blocks`` is how many blocks it gets; None takes the plan's number. ``reference`` names another cell, against
    whose candidate this cell's candidate is also read.
    ``slot_s`` and ``slot_mib`` are hints for ``--dry-run``: about how long one slot takes and what it writes.
    """

    name: Name
    flags: str = ""
    contract: str = "exact"
    blocks: BlockCount | None = None
    reference: Name | None = None
    slot_s: Annotated[float, Field(gt=0, le=7 * 86400, allow_inf_nan=False)] | None = None
    slot_mib: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None

    @field_validator("flags")
    @classmethod
    def _are_flags(cls, text: str) -> str:
        return checked_flags(text)

    @field_validator("contract")
    @classmethod
    def _is_a_contract(cls, text: str) -> str:
        try:
            return str(parse_contract(text))
        except UsageError as error:
            raise ValueError(f"{error.message.rstrip('.')}; {error.next_step}") from error


class Plan(Strict):
    """Everything that decides what a campaign measures. ``min_effect`` is a fraction; times are seconds.

    ``aa`` runs the baseline as both arms on purpose, to see what the machine alone can pretend. ``qualify`` holds what
    every block must show on its own; ``retries`` is how often a block is begun again that an invalid slot has spoilt.
    ``ablation`` says which fast paths each arm has, where the arms are those of ``abba --ablate``.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    name: Name
    title: str = ""
    arms: Arms
    cells: Annotated[tuple[Cell, ...], Field(min_length=1)]
    blocks: BlockCount = 2
    order: Literal["mirrored", "ABBA"] = "mirrored"
    primary: Primary = "worker"
    min_effect: Fraction = 0.01
    timeout_s: Annotated[float, Field(gt=0, le=7 * 86400, allow_inf_nan=False)] = 1800.0
    warmup_slots: Annotated[int, Field(ge=0, le=2, strict=True)] = 1
    retries: Annotated[int, Field(ge=0, le=10, strict=True)] = 1
    qualify: tuple[str, ...] = ()
    aa: bool = False
    ablation: Ablation | None = Field(default=None, exclude_if=lambda ablation: ablation is None)

    @model_validator(mode="before")
    @classmethod
    def _runs_the_baseline_twice(cls, values: Any) -> Any:
        """With ``aa`` the candidate is the baseline, whatever the plan says of it."""
        arms = values.get("arms") if isinstance(values, Mapping) else None
        if isinstance(arms, Mapping) and "baseline" in arms and values.get("aa") is True:
            if len(arms) > 2:
                raise ValueError(f"aa runs the baseline as both arms, and this plan has {len(arms)} arms")
            return {**values, "arms": {**arms, "candidate": arms["baseline"]}}
        return values

    @model_validator(mode="before")
    @classmethod
    def _has_a_block_for_every_place(cls, values: Any) -> Any:
        """From three arms on every arm has each place in a block once: as many blocks as arms, unless the plan says.

        An ablation has so many arms that two blocks are many runs already.
        """
        arms = values.get("arms") if isinstance(values, Mapping) else None
        is_ablation = isinstance(values, Mapping) and values.get("ablation") is not None
        if isinstance(arms, Mapping) and len(arms) > 2 and "blocks" not in values and not is_ablation:
            return {**values, "blocks": len(arms)}
        return values

    @model_validator(mode="after")
    def _has_arms_that_fit(self) -> Plan:
        problem = problem_of_arms(self.ablation, {key: arm.flags for key, arm in self.arms.by_key.items()})
        if problem is not None:
            raise ValueError(problem)
        return self

    @field_validator("qualify")
    @classmethod
    def _are_requirements(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(map(str, parse_requirements(texts)))
        except UsageError as error:
            raise ValueError(error.message) from error

    @field_validator("cells")
    @classmethod
    def _has_distinct_names(cls, cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
        names = [cell.name for cell in cells]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two cells are called {twice[0]!r}")
        problem = problem_of_references({cell.name: cell.reference for cell in cells})
        if problem is not None:
            raise ValueError(problem)
        return cells

    def cell(self, name: str) -> Cell:
        """The cell called ``name``."""
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise FuseproofError(f"the plan {self.name!r} has no cell {name!r}")

    def blocks_of(self, name: str) -> int:
        """How many blocks the cell called ``name`` gets."""
        return self.cell(name).blocks or self.blocks

    def requirements(self) -> tuple[Requirement, ...]:
        """What every block must show on its own, read from ``qualify``."""
        return parse_requirements(self.qualify)

    @property
    def letters(self) -> tuple[ArmLetter, ...]:
        """The letters of the plan's arms: A is the baseline, the others are candidates."""
        return letters_of(len(self.arms.by_key))

    @property
    def slots_per_block(self) -> int:
        """Two timed slots an arm."""
        return 2 * len(self.letters)

    def arm(self, letter: str) -> Arm:
        """The arm of a letter: A is the baseline, B the candidate, C and on the others in the order of the plan."""
        return dict(zip(self.letters, self.arms.all, strict=True))[letter]  # type: ignore[index]

    def key_of(self, letter: str) -> str:
        """The key of an arm in the plan's ``arms``: ``baseline``, ``candidate``, or its own."""
        return dict(zip(self.letters, self.arms.by_key, strict=True))[letter]  # type: ignore[index]

    def orientation(self, block_index: int) -> Orientation:
        """The order of the arms in block ``block_index`` (from 0)."""
        return orientation(block_index, self.order, len(self.letters))

    def against(self, letter: ArmLetter) -> Plan:
        """This plan with one of its candidates as the only one: what a comparison with the baseline is about."""
        if len(self.letters) == 2:
            return self
        arms = Arms(baseline=self.arms.baseline, candidate=self.arm(letter))
        return self.model_copy(update={"arms": arms, "ablation": None})

    def to_json(self) -> dict[str, Any]:
        """The plan as strict JSON values; ``plan_from`` reads it back."""
        return self.model_dump(mode="json", by_alias=True)

    def differences(self, other: Plan) -> list[str]:
        """The dotted keys in which two plans differ, in the order of the plan's own keys."""
        return _differing_keys(self.to_json(), other.to_json(), "")


def built_in_plans() -> list[str]:
    """The names of the plans that come with fuseproof, sorted."""
    return sorted(path.stem for path in PLANS_FOLDER.glob("*.toml"))


def load_plan(name_or_path: str | Path) -> Plan:
    """A built-in plan by name, or any plan by the path of its ``.toml`` file."""
    text = str(name_or_path)
    if text in built_in_plans():
        return _read_plan(PLANS_FOLDER / f"{text}.toml")
    path = Path(name_or_path)
    if path.suffix != ".toml" and not path.is_file():
        raise UsageError(
            f"plan {text!r} is neither built in ({', '.join(built_in_plans())}) nor the path of a .toml file",
            next_step=f"{_did_you_mean(text)}name a built-in plan, or give the path of a plan file.",
        )
    return _read_plan(path, path.resolve().parent)


def _did_you_mean(name: str) -> str:
    found = get_close_matches(name.lower(), built_in_plans(), n=1)
    return f"did you mean {found[0]!r}? Otherwise " if found else ""


def with_plan_dir(word: str, folder: Path) -> str:
    """One word of a command line, with ``{plan_dir}`` replaced by ``folder``."""
    return word.replace(PLAN_DIR, str(folder))


def plan_from(values: Mapping[str, Any], source: str) -> Plan:
    """Check ``values`` as a plan; an error names ``source`` and the key."""
    try:
        return Plan.model_validate(values)
    except ValidationError as error:
        raise UsageError(
            f"{source}: {first_problem(error)}",
            next_step="correct it; --dry-run shows what a plan would run without running it.",
        ) from error


PLAN_ADVICE = "docs/plan.md shows a complete plan and every key."


def _read_plan(path: Path, plan_dir: Path | None = None) -> Plan:
    """Read a plan file; its ``{plan_dir}`` becomes ``plan_dir``, or stays where that is None."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"plan file {path} cannot be read: {cause}", next_step=PLAN_ADVICE) from error
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError, and so is an endless integer
        cause = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).split(";")[0]
        raise UsageError(f"plan file {path} is not valid TOML: {cause}", next_step=PLAN_ADVICE) from error
    plan = plan_from(values, f"plan file {path}")
    return plan if plan_dir is None else _located(plan, plan_dir)


def _located(plan: Plan, plan_dir: Path) -> Plan:
    def words(text: str) -> str:
        return shlex.join(with_plan_dir(word, plan_dir) for word in shlex.split(text)) if PLAN_DIR in text else text

    def located(arm: Arm) -> Arm:
        places = {
            key: text and with_plan_dir(text, plan_dir) for key, text in (("repo", arm.repo), ("python", arm.python))
        }
        env = {name: with_plan_dir(value, plan_dir) for name, value in arm.env.items()}
        command = arm.command and words(arm.command)
        return arm.model_copy(update={"flags": words(arm.flags), "command": command, "env": env, **places})

    cells = tuple(cell.model_copy(update={"flags": words(cell.flags)}) for cell in plan.cells)
    return plan.model_copy(update={"arms": plan.arms.changed(located), "cells": cells})


def first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"]) or "the plan"
    if problem["type"] == "extra_forbidden":
        return f"key {key} is not known"
    if problem["type"] == "missing":
        return f"key {key} is missing"
    message = (
        _NAME_RULE if problem["type"] == "string_pattern_mismatch" else problem["msg"].removeprefix("Value error, ")
    )
    seen = problem["input"]
    shown = "" if isinstance(seen, (dict, list, tuple, BaseModel)) else f" (seen: {seen!r})"
    return f"key {key}: {message[0].lower()}{message[1:]}{shown}"


def _differing_keys(mine: Any, theirs: Any, prefix: str) -> list[str]:
    if isinstance(mine, dict) and isinstance(theirs, dict):
        keys = [*mine, *(key for key in theirs if key not in mine)]
        return [
            found
            for key in keys
            for found in _differing_keys(mine.get(key), theirs.get(key), f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        pairs = enumerate(zip(mine, theirs, strict=True))
        return [found for index, (a, b) in pairs for found in _differing_keys(a, b, f"{prefix}.{index}")]
    return [] if mine == theirs else [prefix]
