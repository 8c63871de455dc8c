"""Make a campaign folder from files that other programs wrote: the same format, and an ``origin`` that says so.

The same files give the same folder, byte for byte: nothing in it depends on this machine, on the time of the import or
on where the files lay. It is written beside its place and renamed, so that a failure leaves nothing.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from fuseproof import __version__
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.arms import portable
from fuseproof.harness.campaign.folder import Campaign, refuse_used_folder, utc_text
from fuseproof.harness.campaign.origin import (
    UNRECORDED_COMMAND,
    UNRECORDED_TIME,
    Origin,
    OriginArm,
    OriginBlock,
    OriginFile,
)
from fuseproof.harness.importing.caveats import import_caveats
from fuseproof.harness.importing.files import shown_text
from fuseproof.harness.importing.gathering import Gathered, gather
from fuseproof.harness.importing.manifest import Manifest, ManifestArm, read_manifest
from fuseproof.harness.importing.placing import ImportedRun, PlacedBlock, place, utc_moment
from fuseproof.harness.importing.planning import Choices, cells_of, plan_of
from fuseproof.harness.importing.records import WrittenSlot, write_slot
from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.media.files import file_sha256
from fuseproof.harness.perf.dump import SCHEMA, PerfDump
from fuseproof.schedules.plan import Plan

SGLANG_TAGS = frozenset({"cli_generate", "server_perf_dump"})


@dataclass(frozen=True)
class ImportRequest:
    """What to import, and where to. ``created`` None takes the manifest's time, then the newest dump's."""

    sources: tuple[Path, ...]
    directory: Path
    labels: str | None = None
    manifest: Path | None = None
    choices: Choices = field(default_factory=Choices)
    created: datetime | None = None

    @property
    def recorded_command(self) -> tuple[str, ...]:
        """The command line without the folder it writes and without the folders that the files lay in."""
        words = ["fuseproof", "import", *(source.resolve().name for source in self.sources)]
        words += ["--manifest", self.manifest.name] if self.manifest is not None else []
        given = {
            "--labels": self.labels,
            "--name": self.choices.name,
            "--title": self.choices.title,
            "--contract": self.choices.contract,
            "--primary": self.choices.primary,
            "--min-effect": None if self.choices.min_effect is None else f"{self.choices.min_effect:g}",
            "--created": None if self.created is None else utc_text(self.created),
        }
        words += [word for flag, value in given.items() if value is not None for word in (flag, value)]
        return tuple(redact(shown_text(word)) for word in (*words, "--output-dir", "DIR"))


def import_campaign(request: ImportRequest, finish: Callable[[Path], object]) -> Path:
    """Write the campaign folder and return it; ``finish`` renders its report before it is put in place.

    Raises :class:`FuseproofError` for a file that cannot be read, :class:`UsageError` for labels, manifests and folders
    that cannot be used; neither leaves anything behind.
    """
    directory = _checked_directory(request)
    manifest = Manifest() if request.manifest is None else read_manifest(request.manifest)
    gathered = gather(request.sources, request.labels, request.manifest, manifest)
    cells = cells_of(gathered.runs, manifest)
    blocks = place(gathered.runs, cells)
    plan = portable(plan_of(request.choices, manifest, blocks, cells))
    temporary = _beside(directory)
    try:
        _write(temporary, request, manifest, gathered, blocks, plan, cells)
        finish(temporary)
        temporary.replace(directory)
    except OSError as error:
        raise FuseproofError(
            f"The campaign folder {directory} cannot be written: {error.strerror or error}.",
            next_step="Choose a folder that is writable and has space left: --output-dir.",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def _checked_directory(request: ImportRequest) -> Path:
    try:
        directory = request.directory.resolve()
        refuse_used_folder(directory)
        for source in request.sources:
            if source.is_dir() and directory.is_relative_to(source.resolve()):
                raise UsageError(
                    f"The campaign folder {request.directory} lies inside {source}, which is imported.",
                    next_step="Choose a folder outside of it with --output-dir.",
                )
    except UsageError as error:
        error.next_step = "Choose a new or empty folder, outside of what is imported, with --output-dir."
        raise
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"The campaign folder {request.directory} cannot be used: {reason}.",
            next_step="Choose another folder with --output-dir.",
        ) from error
    return directory


def _beside(directory: Path) -> Path:
    temporary = directory.parent / f".fuseproof-import-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise FuseproofError(
            f"The campaign folder {directory} cannot be made: {error.strerror or error}.",
            next_step="Choose a folder that is writable with --output-dir.",
        ) from error
    return temporary


def _write(
    folder: Path,
    request: ImportRequest,
    manifest: Manifest,
    gathered: Gathered,
    blocks: Sequence[PlacedBlock],
    plan: Plan,
    cells: Mapping[str, str],
) -> None:
    written = [slot for block in blocks for slot in _write_block(folder, block, plan)]
    arms = {
        letter: _origin_arm(stated, [run.read for run in gathered.runs if run.label.arm == letter])
        for letter, stated in (("A", manifest.arms.baseline), ("B", manifest.arms.candidate))
    }
    created, created_from = _created(request, manifest, gathered.runs)
    files = tuple(file for slot in written for file in slot.files)
    if request.manifest is not None:
        own = OriginFile(redact(shown_text(request.manifest.name)), file_sha256(request.manifest), "manifest")
        files = (own, *files)
    origin = Origin(
        imported_by=f"fuseproof {__version__}",
        created_from=created_from,
        labels=None if gathered.labels is None else shown_text(gathered.labels),
        baseline=arms["A"],
        candidate=arms["B"],
        blocks=tuple(OriginBlock(b.cell, b.number, shown_text(b.label), b.order) for b in blocks if b.label),
        files=files,
        ignored=gathered.ignored,
        caveats=tuple(import_caveats(blocks, written, gathered.ignored, manifest, cells)),
        workloads={
            cell.name: cell.workload for cell in manifest.cells if cell.workload and cell.name in cells.values()
        },
    )
    campaign = Campaign(
        directory=folder,
        plan=plan,
        created=created,
        fuseproof_version=__version__,
        command=request.recorded_command,
        environment=manifest.environment(),
        working_directory=Path(),
        status="complete",
        origin=origin,
    )
    campaign.save_slots(slot.record for slot in written)


def _write_block(folder: Path, block: PlacedBlock, plan: Plan) -> Iterator[WrittenSlot]:
    for slot in block.slots:
        arm = plan.arm(slot.planned.arm)
        words = () if arm.command in (None, UNRECORDED_COMMAND) else tuple(shlex.split(arm.command or ""))
        yield write_slot(folder, block, slot, words, arm.env)


def _origin_arm(stated: ManifestArm, dumps: Sequence[PerfDump]) -> OriginArm:
    """The manifest's word counts; without it, what the dumps show of the program that wrote them."""
    tools = [_tool(dump) for dump in dumps]
    names = list(dict.fromkeys(name for name, _ in tools if name))
    versions = list(dict.fromkeys(version for _, version in tools if version))
    qualities = list(dict.fromkeys(str(found) for dump in dumps if (found := dump.config.get("quality")) is not None))
    return OriginArm(
        tool=stated.tool or (" and ".join(names) or None),
        tool_version=stated.tool_version or (None if stated.tool else " and ".join(versions) or None),
        quality=stated.quality or (" and ".join(qualities) or None),
        commit=stated.commit,
    )


def _tool(dump: PerfDump) -> tuple[str | None, str | None]:
    if dump.schema == SCHEMA:
        own = dump.environment.get("fuseproof")
        version = own.get("version") if isinstance(own, Mapping) else None
        return "fuseproof", str(version) if version else None
    return ("sglang", None) if dump.raw.get("tag") in SGLANG_TAGS else (None, None)


def _created(request: ImportRequest, manifest: Manifest, runs: Sequence[ImportedRun]) -> tuple[str, str]:
    """When the campaign was made, and how that is known; never the time of the import."""
    for moment, source in ((request.created, "--created"), (manifest.created, "the manifest")):
        if moment is not None:
            return utc_text(utc_moment(moment)), source
    newest = max((run.written for run in runs if run.written is not None), default=None)
    if newest is None:
        return UNRECORDED_TIME, "nothing: no dump has a time"
    return utc_text(newest), "the newest dump"


def describe_import(campaign: Campaign) -> dict[str, object]:
    """What was imported, as strict JSON values."""
    origin = campaign.origin
    states = Counter(slot.state for slot in campaign.slots())
    return {
        "schema": "fuseproof.import/1",
        "name": campaign.name,
        "created": campaign.created,
        "slots": dict(sorted(states.items())),
        "origin": None if origin is None else dataclasses.asdict(origin),
    }
