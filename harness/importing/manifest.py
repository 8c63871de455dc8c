"""A manifest: what file names cannot say. Arms with their tool and its quality words, workloads, and slots by path."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from fuseproof.errors import UsageError
from fuseproof.harness.importing.labels import arm_of
from fuseproof.harness.importing.placing import utc_moment
from fuseproof.schedules.contracts import parse_contract
from fuseproof.schedules.plan import Fraction, Name, Primary, first_problem

ADVICE = "docs/import.md shows a complete manifest and every key."
LARGEST_MANIFEST_BYTES = 4 * 1024 * 1024

Text = Annotated[str, Field(min_length=1, max_length=2000)]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Paths = Annotated[tuple[Text, ...], BeforeValidator(_as_list)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ManifestArm(_Strict):
    """One arm as its author knows it. ``quality`` is the tool's own word."""

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    command: Text | None = None
    commit: Text | None = None
    tool: Text | None = None
    tool_version: Text | None = None
    quality: Text | None = None
    env: dict[str, str] = Field(default_factory=dict)


class ManifestArms(_Strict):
    baseline: ManifestArm = ManifestArm()
    candidate: ManifestArm = ManifestArm()


class ManifestCell(_Strict):
    """One workload. ``label`` is what file names call it, where that is not its name."""

    name: Name
    label: Text | None = None
    contract: str | None = None
    workload: Text | None = None

    @field_validator("contract")
    @classmethod
    def _is_a_contract(cls, text: str | None) -> str | None:
        try:
            return None if text is None else str(parse_contract(text))
        except UsageError as error:
            raise ValueError(error.message) from error


class ManifestSlot(_Strict):
    """One run. Paths are relative to the manifest's folder; ``arm`` is a1, b1, b2 or a2."""

    cell: Name
    block: Annotated[int, Field(ge=1, le=1000, strict=True)]
    arm: str
    position: Annotated[int, Field(ge=1, le=4, strict=True)] | None = None
    perf_dump: Text
    log: Text | None = None
    outputs: Paths = ()
    frames: Paths = ()

    @field_validator("arm")
    @classmethod
    def _is_a_run(cls, text: str) -> str:
        if arm_of(text) is None:
            raise ValueError("an arm's run is a1, b1, b2 or a2 (or baseline-1, candidate-1, ...)")
        return text


class Machine(_Strict):
    """Where it was measured, as the author knows it."""

    gpus: Paths = ()
    processor: Text | None = None
    libraries: dict[str, str] = Field(default_factory=dict)


class Manifest(_Strict):
    """Everything a manifest may hold; all of it is optional but ``schema``."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_version: Literal[1] = Field(default=1, alias="schema")
    name: Name | None = None
    title: str = ""
    primary: Primary | None = None
    min_effect: Fraction | None = None
    aa: bool = False
    created: datetime | None = None
    arms: ManifestArms = ManifestArms()
    machine: Machine = Machine()
    cells: tuple[ManifestCell, ...] = ()
    slots: tuple[ManifestSlot, ...] = ()

    @field_validator("created")
    @classmethod
    def _is_a_moment(cls, moment: datetime | None) -> datetime | None:
        try:
            return None if moment is None else utc_moment(moment)
        except OverflowError as error:
            raise ValueError("the time lies at the end of the calendar, and is none in UTC") from error

    @field_validator("cells")
    @classmethod
    def _has_distinct_names(cls, cells: tuple[ManifestCell, ...]) -> tuple[ManifestCell, ...]:
        for what, names in (("called", [cell.name for cell in cells]), ("labelled", _labels(cells))):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"two cells are {what} {twice[0]!r}")
        return cells

    def cell_of(self, label: str) -> ManifestCell | None:
        """The cell that file names call ``label``."""
        return next((cell for cell in self.cells if label in (cell.label, cell.name)), None)

    def environment(self) -> dict[str, Any]:
        """The machine in the form of a campaign's ``environment``."""
        machine = self.machine
        found: dict[str, Any] = {"gpus": [{"name": name} for name in machine.gpus]} if machine.gpus else {}
        found |= {"processor": {"model": machine.processor}} if machine.processor else {}
        found |= {"libraries": dict(machine.libraries)} if machine.libraries else {}
        return found or {"machine": "not recorded by the imported files"}


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest; :class:`UsageError` names file and key."""
    try:
        if path.is_file() and path.stat().st_size > LARGEST_MANIFEST_BYTES:
            raise UsageError(f"manifest {path} is larger than {LARGEST_MANIFEST_BYTES // 2**20} MiB.", next_step=ADVICE)
        text = path.read_text(encoding="utf-8-sig") if not path.exists() or path.is_file() else None
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"manifest {path} cannot be read: {cause}.", next_step=ADVICE) from error
    if text is None:
        raise UsageError(f"manifest {path} is no regular file.", next_step=ADVICE)
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        cause = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).split(";")[0]
        raise UsageError(f"manifest {path} is not valid TOML: {cause}.", next_step=ADVICE) from error
    return manifest_from(values, f"manifest {path}")


def manifest_from(values: Mapping[str, Any], source: str) -> Manifest:
    """Check ``values`` as a manifest; an error names ``source`` and the key."""
    try:
        return Manifest.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"{source}: {first_problem(error)}.", next_step=ADVICE) from error


def _labels(cells: tuple[ManifestCell, ...]) -> list[str]:
    return [cell.label or cell.name for cell in cells]
