"""The arms of a plan: what each runs, and where its code comes from."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fuseproof.schedules.arm_keys import (
    DEFAULT_SETUP_S,
    Module,
    Ref,
    SetupSeconds,
    Text,
    TimePattern,
    problem_of_sources,
    problem_of_time,
)
from fuseproof.schedules.order import LETTERS

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
_SLOT_FLAGS = ("--perf-dump-path", "--output-path", "--output-file-path")


class Strict(BaseModel):
    """Frozen values; a key that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)


class Arm(Strict):
    """Baseline or candidate: flags for ``fuseproof generate``, or a command template of its own.

    A command names ``{perf_dump}`` and, if it writes media, ``{output_dir}``; with a ``time_pattern`` its time is read
    from what it prints instead. ``env`` is added to the slot's environment; it is stored with the campaign, so it may
    not hold secrets. With a ``ref`` the arm runs a clean tree of that commit of ``repo``, prepared once by ``setup``;
    ``imports`` names the module that must come from it.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    flags: str = ""
    command: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    ref: Ref | None = None
    repo: Text | None = None
    setup: Text | None = None
    setup_timeout_s: SetupSeconds = DEFAULT_SETUP_S
    python: Text | None = None
    imports: Module | None = None
    time_pattern: TimePattern | None = Field(default=None, exclude_if=lambda pattern: pattern is None)

    @field_validator("flags")
    @classmethod
    def _are_flags(cls, text: str) -> str:
        return checked_flags(text)

    @field_validator("command")
    @classmethod
    def _is_a_command(cls, text: str | None) -> str | None:
        if text is not None and not _words(text):
            raise ValueError("the command is empty")
        return text

    @field_validator("env")
    @classmethod
    def _has_proper_names(cls, env: dict[str, str]) -> dict[str, str]:
        for key, value in env.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
                raise ValueError(f"{key!r} is no name of an environment variable")
            if "\0" in value:
                raise ValueError(f"{key} holds a NUL byte")
        return env

    @model_validator(mode="after")
    def _is_one_kind(self) -> Arm:
        if self.command is not None and self.flags:
            raise ValueError("an arm has flags or a command, not both")
        problem = problem_of_sources(self.ref, self.repo, self.setup) or problem_of_time(
            self.command, self.time_pattern
        )
        if problem is not None:
            raise ValueError(problem)
        return self


class Arms(Strict):
    """The baseline, the candidate, and any further candidates under names of their own, in the order of the file."""

    model_config = ConfigDict(extra="allow")
    if not TYPE_CHECKING:  # which takes it for a field that every caller must give
        __pydantic_extra__: dict[Name, Arm]

    baseline: Arm
    candidate: Arm

    @model_validator(mode="after")
    def _can_be_told_apart(self) -> Arms:
        if len(self.by_key) > len(LETTERS):
            raise ValueError(f"there are {len(self.by_key)} arms; an ablation has at most {len(LETTERS)}")
        names = [arm.name for arm in self.all]
        twice = [name for name in names if names.count(name) > 1]
        if twice and len(names) > 2:
            raise ValueError(f"two arms are called {twice[0]!r}; the report names each comparison by its candidate")
        return self

    @property
    def by_key(self) -> dict[str, Arm]:
        """Every arm by its key in the plan: ``baseline``, ``candidate``, then the others."""
        return {"baseline": self.baseline, "candidate": self.candidate, **(self.__pydantic_extra__ or {})}

    @property
    def all(self) -> tuple[Arm, ...]:
        """Every arm in the order of its letter: A is the baseline."""
        return tuple(self.by_key.values())

    def changed(self, change: Callable[[Arm], Arm]) -> Arms:
        """The same arms, each changed."""
        return Arms.model_validate({key: change(arm) for key, arm in self.by_key.items()})


def _words(text: str) -> list[str]:
    if "\0" in text:
        raise ValueError("a command line cannot hold a NUL byte")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{str(error).lower()} in {text!r}") from error


def checked_flags(text: str) -> str:
    """Flags that a shell can split, without those that every slot sets itself; ``ValueError`` says what is wrong."""
    for word in _words(text):
        if word.split("=", 1)[0] in _SLOT_FLAGS:
            raise ValueError(f"{word.split('=', 1)[0]} is set by every slot itself; leave it out")
    return text.strip()
