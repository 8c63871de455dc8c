"""Where an imported campaign comes from: files that other programs wrote, and what nobody observed about them.

A campaign that ``fuseproof abba`` ran has no origin. One that ``fuseproof import`` made from old dumps names every file
with its SHA-256, the tool that measured it, and that tool's own quality words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from fuseproof.errors import FuseproofError

UNRECORDED_COMMAND = "not recorded"
"""The command of an arm that nobody wrote down."""
UNRECORDED_TIME = "not recorded"
NOT_IMPORTED = "NOT_IMPORTED"
"""Reason code of a slot of which no file was given."""
SLOT_ORDER = "SLOT_ORDER"
"""Reason code of a block whose runs, by their own times, were in neither order."""
DAMAGED_ORIGIN_STEP = "Restore the file from a copy, or import the files again into a new folder."

FileKind = Literal["perf dump", "log", "output", "manifest"]
OrderSource = Literal["dump times", "file names"]


@dataclasses.dataclass(frozen=True)
class OriginArm:
    """What an arm's files and the manifest say of it; None where they say nothing."""

    tool: str | None = None
    tool_version: str | None = None
    quality: str | None = None
    commit: str | None = None

    @property
    def tool_text(self) -> str:
        """``sglang 0.5.23``, ``sglang (version not recorded)``, or that the tool is unknown."""
        if self.tool is None:
            return "an unknown tool"
        return f"{self.tool} {self.tool_version or '(version not recorded)'}"

    @property
    def quality_text(self) -> str:
        """The tool's own word, never to be read as one of ours: ``sglang 0.5.23 quality 'lossless'``."""
        return "not recorded" if self.quality is None else f"{self.tool_text} quality '{self.quality}'"


@dataclasses.dataclass(frozen=True)
class OriginFile:
    """One file that was read. ``path`` is as the user would find it, relative to the sources."""

    path: str
    sha256: str
    kind: FileKind
    slot: str | None = None


@dataclasses.dataclass(frozen=True)
class OriginBlock:
    """A block as its files name it, and what its order rests on."""

    cell: str
    block: int
    label: str
    order: OrderSource


@dataclasses.dataclass(frozen=True)
class Origin:
    """``origin`` of ``campaign.json``. ``ignored`` are files beside the dumps that were not imported."""

    imported_by: str
    created_from: str
    labels: str | None
    baseline: OriginArm
    candidate: OriginArm
    blocks: tuple[OriginBlock, ...] = ()
    files: tuple[OriginFile, ...] = ()
    ignored: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    workloads: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def tools(self) -> str:
        """The tools that measured, each once; an arm without a single dump has none."""
        measured = {(file.slot or "")[-1:] for file in self.files if file.kind == "perf dump"}
        arms = {"A": self.baseline, "B": self.candidate}
        return " and ".join(dict.fromkeys(arm.tool_text for letter, arm in arms.items() if letter in measured))

    @property
    def dump_count(self) -> int:
        return sum(file.kind == "perf dump" for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Any, source: str) -> Origin:
        """Read ``origin`` back; :class:`FuseproofError` names ``source`` and the key."""
        try:
            return _origin_adapter().validate_python(values)
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(("origin", *(str(part) for part in problem["loc"])))
            raise FuseproofError(f"{source}: key {key}: {problem['msg']}.", next_step=DAMAGED_ORIGIN_STEP) from error


@cache
def _origin_adapter() -> TypeAdapter[Origin]:
    return TypeAdapter(Origin)
