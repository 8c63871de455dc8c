"""The campaign folder: plan, slot index and one folder per slot. Nothing measured is ever deleted or overwritten.

``campaign.json`` is rewritten by rename after every slot, so that a campaign can be read, rendered and resumed
whatever ended it. What a slot's own folder says (``result.json``) counts; the index repeats it.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from fuseproof import __version__
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.atomic_files import UNFINISHED_FILES, write_text_atomically
from fuseproof.harness.campaign.arm_lineage import ArmLineage, lineage_from
from fuseproof.harness.campaign.arm_places import ArmPlace
from fuseproof.harness.campaign.inputs import InputFile, keep_inputs
from fuseproof.harness.campaign.origin import Origin
from fuseproof.harness.campaign.plan_source import PlanSource
from fuseproof.harness.campaign.plausibility import CampaignWarning
from fuseproof.harness.campaign.records import DAMAGED_STEP, SLOT_SCHEMA, SlotRecord
from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.perf.fields import read_json_object
from fuseproof.schedules.order import Orientation
from fuseproof.schedules.plan import Plan, plan_from

CAMPAIGN_SCHEMA = "fuseproof.campaign/1"
CAMPAIGN_FILE = "campaign.json"
RESULT_FILE = "result.json"
PERF_FILE = "perf.json"
OUTPUTS_FOLDER = "outputs"
MISSING = "MISSING"
"""Reason code of a slot that the index names and whose folder or ``result.json`` is gone."""

CampaignStatus = Literal["running", "complete", "interrupted", "failed"]

_INDEX_KEYS = (
    "id",
    "directory",
    "cell",
    "block",
    "attempt",
    "position",
    "arm",
    "label",
    "orientation",
    "kind",
    "state",
    "reason_code",
)


@dataclass(frozen=True)
class Session:
    """One call of the program that worked on a campaign: the first, or a resumed one."""

    started: str
    command: tuple[str, ...]
    fuseproof_version: str
    environment: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "started": self.started,
            "command": list(self.command),
            "fuseproof_version": self.fuseproof_version,
            "environment": dict(self.environment),
        }


@dataclass(frozen=True)
class BlockSlots:
    """A complete attempt at a block: its four usable slots in the order they ran."""

    cell: str
    block: int
    attempt: int
    orientation: Orientation
    slots: tuple[SlotRecord, ...]


@dataclass
class Campaign:
    """A campaign folder in memory. Made by :meth:`create` or :meth:`open`; ``save_*`` methods write through.

    Every slot runs in ``working_directory``, where the campaign was begun, so that relative paths keep their meaning.
    Several threads may work on one campaign: one of them at a time reads or changes its slots.
    ``warnings`` are of the cells that were run to their end.
    """

    directory: Path
    plan: Plan
    created: str
    fuseproof_version: str
    command: tuple[str, ...]
    environment: Mapping[str, Any]
    working_directory: Path
    status: CampaignStatus = "running"
    sessions: list[Session] = field(default_factory=list)
    warnings: tuple[CampaignWarning, ...] = ()
    inputs: tuple[InputFile, ...] = ()
    origin: Origin | None = None
    """Of an imported campaign."""
    added_blocks: tuple[int, ...] = ()
    """How many blocks a cell each later session asked for beyond the plan; the plan itself never changes."""
    plan_source: PlanSource | None = None
    """The stored campaign that the plan was taken from."""
    lineage: Mapping[str, ArmLineage] = field(default_factory=dict)
    """Arm letter → where its code came from when the campaign began."""
    present_lineage: Mapping[str, ArmLineage] = field(default_factory=dict)
    places: Mapping[str, ArmPlace] = field(default_factory=dict)
    """Of the session that runs: where its slots run, and the lineage they record; neither is stored."""
    slot_variables: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    """Cell and arm letter → what the session adds to the environment of its slots; they record it."""
    _records: dict[str, SlotRecord] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.plan.name

    @classmethod
    def create(
        cls, directory: Path, plan: Plan, *, command: Sequence[str], environment: Mapping[str, Any], created: str
    ) -> Campaign:
        """Make the folder (new, or existing and empty), its ``inputs/`` and its ``campaign.json``.

        Raises :class:`UsageError` for a folder that already holds something: old runs never mix with new ones.
        """
        refuse_used_folder(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for unfinished in directory.glob(UNFINISHED_FILES):
                unfinished.unlink(missing_ok=True)
        except OSError as error:
            raise FuseproofError(
                f"The campaign folder {directory} cannot be made: {error.strerror or error}.",
                next_step="Choose another folder with --output.",
            ) from error
        campaign = cls(directory, plan, created, __version__, tuple(command), environment, Path.cwd())
        campaign.inputs = keep_inputs(plan, campaign.working_directory, directory)
        campaign.begin_session(created, command, environment)
        return campaign

    @classmethod
    def open(cls, directory: Path | str) -> Campaign:
        """Read a campaign folder back, with every slot in it.

        Raises :class:`FuseproofError` naming the file and the key when the folder is no campaign or is damaged.
        """
        folder = Path(directory)
        source = folder / CAMPAIGN_FILE
        if not source.is_file():
            raise FuseproofError(
                f"{folder} is no campaign folder: it has no {CAMPAIGN_FILE}.",
                next_step="Give a folder that `fuseproof abba` or `fuseproof import` wrote, or one unpacked from an "
                "archive of `fuseproof pack`.",
            )
        values = read_json_object(source)
        if values.get("schema") != CAMPAIGN_SCHEMA:
            raise FuseproofError(
                f"{source}: schema is {values.get('schema')!r}, this version reads {CAMPAIGN_SCHEMA!r}.",
                next_step=DAMAGED_STEP,
            )
        try:
            campaign = cls._from_json(folder, values, source)
            indexed = {str(entry["id"]): dict(entry) for entry in values["slots"]}
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            cause = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
            raise FuseproofError(f"{source}: {cause}.", next_step=DAMAGED_STEP) from error
        campaign._read_records(indexed)
        return campaign

    def _read_records(self, indexed: Mapping[str, Mapping[str, Any]]) -> None:
        """Read the indexed slots in order, then those whose index entry a crash has swallowed.

        An indexed slot that is gone from the disk stays as an invalid one, with what the index knows of it.
        """
        root = self.directory / "slots"
        found = sorted(str(path.parent.relative_to(root)) for path in root.glob(f"*/*/{RESULT_FILE}"))
        for slot_id in dict.fromkeys([*indexed, *found]):
            result = root / slot_id / RESULT_FILE
            if slot_id in indexed and not result.exists():
                self._records[slot_id] = _missing_slot(indexed[slot_id], result, str(self.directory / CAMPAIGN_FILE))
                continue
            record = SlotRecord.from_json(read_json_object(result), str(result))
            if record.id != slot_id:
                raise FuseproofError(
                    f"{result}: id is {record.id!r}, expected {slot_id!r}, the name of its folder.",
                    next_step="Restore the file; a slot's folder is never renamed or copied.",
                )
            self._records[slot_id] = record

    @classmethod
    def _from_json(cls, folder: Path, values: Mapping[str, Any], source: Path) -> Campaign:
        status = values["status"]
        if status not in get_args(CampaignStatus):
            raise ValueError(f"status is {status!r}, expected one of {', '.join(get_args(CampaignStatus))}")
        sessions = [
            Session(item["started"], tuple(item["command"]), item["fuseproof_version"], item["environment"])
            for item in values.get("sessions", [])
        ]
        return cls(
            directory=folder,
            plan=plan_from(values["plan"], str(source)),
            created=str(values["created"]),
            fuseproof_version=str(values["fuseproof_version"]),
            command=tuple(values["command"]),
            environment=dict(values["environment"]),
            working_directory=Path(values.get("working_directory", ".")).expanduser(),
            status=status,
            sessions=sessions,
            warnings=tuple(CampaignWarning(**item) for item in values.get("warnings", [])),
            inputs=tuple(InputFile(**item) for item in values.get("inputs", [])),
            origin=Origin.from_json(values["origin"], str(source)) if "origin" in values else None,
            plan_source=PlanSource.from_json(values["from"], str(source)) if "from" in values else None,
            lineage=lineage_from(values.get("lineage", {}), str(source)),
            added_blocks=tuple(int(number) for number in values.get("added_blocks", ())),
        )

    def blocks_wanted(self, cell: str) -> int:
        """How many blocks a cell gets: those of the plan and all that were added."""
        return self.plan.blocks_of(cell) + sum(self.added_blocks)

    def missing_blocks(self, cell: str) -> list[int]:
        """The numbers of a cell's blocks that are still to run."""
        whole = {found.block for found in self.complete_blocks(cell)}
        return [number for number in range(1, self.blocks_wanted(cell) + 1) if number not in whole]

    def note_added_blocks(self, number: int) -> None:
        """Every cell gets so many blocks more; written to ``campaign.json``."""
        with self._lock:
            self.added_blocks = (*self.added_blocks, number)
            self._save_index()

    def begin_session(self, started: str, command: Sequence[str], environment: Mapping[str, Any]) -> None:
        """Note that the program was called again on this folder; marks the campaign as running."""
        with self._lock:
            self.sessions.append(Session(started, tuple(command), __version__, environment))
            self.save_status("running")

    def slots(self) -> list[SlotRecord]:
        """Every slot ever started here, in the order they were started, superseded ones included."""
        with self._lock:
            return list(self._records.values())

    def save_slot(self, record: SlotRecord) -> None:
        """Write the slot's ``result.json``, then the index."""
        with self._lock:
            self._write_result(record)
            self._save_index()

    def save_slots(self, records: Iterable[SlotRecord]) -> None:
        """Write many slots' ``result.json``, and the index once."""
        with self._lock:
            for record in records:
                self._write_result(record)
            self._save_index()

    def take_in(self, records: Iterable[SlotRecord]) -> None:
        """Know slots whose ``result.json`` another process of this campaign has written, and write the index."""
        with self._lock:
            self._records.update((record.id, record) for record in records)
            self._save_index()

    def read_block(self, cell: str, block: int) -> None:
        """Take in what lies on disk of a block that another process worked on, whatever became of it."""
        folder = self.directory / "slots" / cell
        names = (f"{block:02d}-*/{RESULT_FILE}", f"{block:02d}.*-*/{RESULT_FILE}")
        found = sorted(path for name in names for path in folder.glob(name))
        self.take_in([SlotRecord.from_json(read_json_object(path), str(path)) for path in found])

    def save_warnings(self, cell: str, warnings: Sequence[CampaignWarning]) -> None:
        """Put ``warnings`` in the place of what was known of a cell, and write ``campaign.json``."""
        with self._lock:
            self.warnings = (*(known for known in self.warnings if known.cell != cell), *warnings)
            self._save_index()

    def save_status(self, status: CampaignStatus) -> None:
        """Write ``campaign.json`` with a new status."""
        with self._lock:
            self.status = status
            self._save_index()

    def slot_directory(self, slot_id: str) -> Path:
        """The folder of a slot."""
        return self.directory / "slots" / slot_id

    def attempts(self, cell: str, block: int) -> int:
        """How many attempts at a block were begun; 0 for none."""
        return max((slot.attempt for slot in self._of_block(cell, block)), default=0)

    def complete_blocks(self, cell: str) -> list[BlockSlots]:
        """The blocks of a cell that count: four usable slots of one attempt, in block order."""
        groups: dict[tuple[int, int], list[SlotRecord]] = defaultdict(list)
        for slot in self.slots():
            if slot.cell == cell and slot.is_usable:
                groups[slot.block, slot.attempt].append(slot)
        blocks = []
        for (block, attempt), members in sorted(groups.items()):
            if len(members) == self.plan.slots_per_block:
                ordered = tuple(sorted(members, key=lambda slot: slot.position))
                blocks.append(BlockSlots(cell, block, attempt, ordered[0].orientation, ordered))
        return blocks

    def has_complete_block(self, cell: str, block: int) -> bool:
        return any(found.block == block for found in self.complete_blocks(cell))

    def has_finished_slot(self, cell: str, arm: str) -> bool:
        """Whether an arm ever finished a slot of this cell, warm-up slots included."""
        finished = ("done", "superseded")
        return any(slot.cell == cell and slot.arm == arm and slot.state in finished for slot in self.slots())

    def supersede_block(self, cell: str, block: int, reason: str) -> None:
        """Mark the finished slots of a block that starts again; what they measured stays on disk."""
        cause = "the campaign ended without a word while this slot ran"
        with self._lock:
            for slot in self._of_block(cell, block):
                if slot.state == "done":
                    self._write_result(slot.with_facts(state="superseded", reason_code="SUPERSEDED", reason=reason))
                elif slot.state == "running":
                    self._write_result(slot.with_facts(state="interrupted", reason_code="INTERRUPTED", reason=cause))
            self._save_index()

    def _of_block(self, cell: str, block: int) -> list[SlotRecord]:
        return [slot for slot in self.slots() if slot.cell == cell and slot.block == block]

    def _write_result(self, record: SlotRecord) -> None:
        write_json(self.directory / record.directory / RESULT_FILE, record.to_json())
        self._records[record.id] = record

    def _save_index(self) -> None:
        write_json(self.directory / CAMPAIGN_FILE, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """``campaign.json`` as JSON values."""
        return {
            "schema": CAMPAIGN_SCHEMA,
            "name": self.name,
            "created": self.created,
            "fuseproof_version": self.fuseproof_version,
            "status": self.status,
            "command": list(self.command),
            "plan": self.plan.to_json(),
            "environment": dict(self.environment),
            "working_directory": redact(str(self.working_directory)),
            "sessions": [session.to_json() for session in self.sessions],
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
            "inputs": [dataclasses.asdict(file) for file in self.inputs],
            **({"added_blocks": list(self.added_blocks)} if self.added_blocks else {}),
            **({"origin": self.origin.to_json()} if self.origin is not None else {}),
            **({"from": self.plan_source.to_json()} if self.plan_source is not None else {}),
            **({"lineage": {arm: known.to_json() for arm, known in self.lineage.items()}} if self.lineage else {}),
            "slots": [{key: getattr(slot, key) for key in _INDEX_KEYS} for slot in self._records.values()],
        }


def _missing_slot(entry: Mapping[str, Any], result: Path, source: str) -> SlotRecord:
    what = "result.json" if result.parent.is_dir() else "folder"
    known = {key: entry[key] for key in _INDEX_KEYS if key in entry and key != "directory"}
    facts = {"state": "invalid", "reason_code": MISSING, "reason": f"its {what} is missing"}
    return SlotRecord.from_json({"schema": SLOT_SCHEMA, **known, **facts}, source)


def refuse_used_folder(directory: Path) -> None:
    """Raise :class:`UsageError` unless ``directory`` is missing or an empty folder.

    A file that a killed campaign had begun and not named yet is nothing: a new campaign removes it.
    """
    try:
        is_used = directory.exists() and (not directory.is_dir() or any(map(_is_of_somebody, directory.iterdir())))
    except OSError as error:
        raise FuseproofError(f"The campaign folder {directory} cannot be read: {error.strerror or error}.") from error
    if not is_used:
        return
    what = "already holds files" if directory.is_dir() else "is a file"
    raise UsageError(
        f"The campaign folder {directory} {what}; a campaign needs a new or empty folder.",
        next_step=f"Choose another folder with --output, or go on with --resume {directory}.",
    )


def _is_of_somebody(path: Path) -> bool:
    return not path.match(UNFINISHED_FILES)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write strict JSON, complete or not at all; :class:`FuseproofError` names the path and the cause."""
    try:
        text = json.dumps(values, indent=2, allow_nan=False)
    except ValueError as error:
        raise FuseproofError(f"{path} would not be strict JSON: {error}.") from error
    write_text_atomically(path, text + "\n")


def utc_text(moment: datetime) -> str:
    """A moment as ISO-8601 in UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
