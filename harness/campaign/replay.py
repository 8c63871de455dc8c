"""The plan of a stored campaign, made ready to be measured again here: a new campaign, never a resumed one.

Git refs become the commits that were measured. A file that the plan's flags name must be the one that was used: where
it is missing here, or is another one, the copy that the campaign kept takes its place. What cannot be had is refused.
"""

from __future__ import annotations

import shlex
import string
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.arm_lineage import ArmLineage
from fuseproof.harness.campaign.arm_programs import programs_again, programs_ran
from fuseproof.harness.campaign.arms import shared_words
from fuseproof.harness.campaign.folder import CAMPAIGN_FILE, Campaign
from fuseproof.harness.campaign.inputs import INPUT_FLAGS, NO_FILES, InputFile
from fuseproof.harness.campaign.plan_source import PlanSource
from fuseproof.harness.campaign.records import DAMAGED_STEP
from fuseproof.harness.campaign.session import changed_software
from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.media.files import file_sha256
from fuseproof.schedules.plan import PLAN_DIR, Plan, plan_from


@dataclass
class Replay:
    """``plan`` is ready to run; ``remarks`` are sentences a person should read before it does."""

    plan: Plan
    source: PlanSource
    environment: Mapping[str, Any]
    remarks: list[str] = field(default_factory=list)


def campaign_folder(path: Path) -> Path:
    """A campaign's folder, given as such or by its ``campaign.json``."""
    return path.parent if path.name == CAMPAIGN_FILE and not path.is_dir() else path


def replay(path: Path, working_directory: Path, repo: str | None, overrides: Mapping[str, Any]) -> Replay:
    """The plan of the campaign at ``path`` with ``overrides`` of its own keys; ``repo`` is where its commits are now.

    Raises :class:`UsageError` for an imported campaign, a file or repository that is not here, and a ``repo`` for a
    plan without refs; :class:`FuseproofError` for a folder that is no campaign.
    """
    folder = campaign_folder(path)
    campaign = Campaign.open(folder)
    if campaign.origin is not None:
        raise UsageError(
            f"{path} was imported from files of other programs: nobody knows the commands that were run.",
            next_step="Write a plan of your own (docs/plan.md) and measure it with `fuseproof abba PLAN.toml`.",
        )
    _refuse_odd_gpus(campaign)
    values = campaign.plan.to_json()
    remarks: list[str] = []
    arms = {role: arm for role, arm in values["arms"].items() if isinstance(arm, dict)}
    if repo is not None and not any(arm.get("ref") for arm in arms.values()):
        raise UsageError(
            f"--repo says where refs are looked up, and the plan of {campaign.name} has none.",
            next_step="Leave it out.",
        )
    for letter, (role, arm) in zip(string.ascii_uppercase, arms.items(), strict=False):
        known = campaign.lineage.get(letter)
        arm.update(_with_measured_commit(role, arm, known, repo, working_directory, remarks))
    inputs = _Inputs(campaign, working_directory, remarks)
    for part in (*values["cells"], *(arm for arm in arms.values() if arm.get("command") is None)):
        part["flags"] = inputs.placed(part.get("flags") or "")
    for letter, (role, arm) in zip(string.ascii_uppercase, arms.items(), strict=False):
        if arm.get("command") and not arm.get("ref"):
            remarks += programs_again(role, programs_ran(campaign.slots(), letter), working_directory)
    programs = [role for role, arm in arms.items() if arm.get("command") or arm.get("setup")]
    remarks += _other_folder(campaign, working_directory) if programs else []
    if programs:
        remarks.append(f"the stored plan runs programs of its own ({', '.join(programs)}); --dry-run shows them")
    changed = tuple(key for key, value in overrides.items() if values.get(key) != value)
    values |= overrides
    if "blocks" in overrides:
        values["cells"] = [cell | {"blocks": None} for cell in values["cells"]]
    sha256 = file_sha256(folder / CAMPAIGN_FILE)
    source = PlanSource(campaign.name, campaign.created, sha256, changed)
    return Replay(plan_from(values, f"the plan of {path}"), source, campaign.environment, remarks)


def _other_folder(campaign: Campaign, here: Path) -> list[str]:
    """That a relative path in a program's words means another file than it did."""
    before, now = redact(str(campaign.working_directory)), redact(str(here))
    if before == now:
        return []
    return [
        f"the stored campaign ran in {before}, and a relative path in the commands of its arms is looked up from {now} "
        "now"
    ]


def _refuse_odd_gpus(campaign: Campaign) -> None:
    """Raise :class:`FuseproofError` where what ``environment`` says of the GPUs cannot be read."""
    gpus, visible = (campaign.environment.get(key) for key in ("gpus", "visible_gpu_uuids"))
    named = [gpu.get("uuid") for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []
    for key, value, is_read in (
        ("gpus", gpus, gpus is None or (isinstance(gpus, list) and len(named) == len(gpus))),
        ("gpus", gpus, all(uuid is None or isinstance(uuid, str) for uuid in named)),
        ("visible_gpu_uuids", visible, visible is None or _are_texts(visible)),
    ):
        if not is_read:
            raise FuseproofError(
                f"{campaign.directory / CAMPAIGN_FILE}: key environment.{key} is {value!r}, and a list of "
                f"{'objects with a uuid' if key == 'gpus' else 'texts'} was expected.",
                next_step=DAMAGED_STEP,
            )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def environment_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between the machine and software of a stored campaign and those here, a sentence each."""
    facts = (("the GPUs", _cards), ("the driver", _drivers), ("the processor", _processor), ("Python", _python))
    found = [
        f"{name} went from {old or 'none'} to {new or 'none'}"
        for name, read in facts
        for old, new in [(read(before), read(now))]
        if old != new
    ]
    return [*found, *changed_software(before, now)]


def _with_measured_commit(
    role: str, arm: Mapping[str, Any], known: ArmLineage | None, repo: str | None, here: Path, remarks: list[str]
) -> dict[str, Any]:
    """``ref`` and ``repo`` of an arm of a git ref: the commit that was measured, in a checkout that is here."""
    ref = arm.get("ref")
    if ref is None:
        return {}
    if known is None or known.commit is None:
        raise UsageError(
            f"The stored campaign does not say which commit its {role} {ref} was, so it cannot be measured again.",
            next_step="Name the refs yourself: --baseline-ref and --candidate-ref.",
        )
    place = repo or known.repo or arm.get("repo")
    try:
        is_here = place is not None and (here / Path(place).expanduser()).is_dir()
    except RuntimeError:
        is_here = False
    if not is_here:
        raise UsageError(
            f"The {role} is commit {known.commit[:12]} of {place or 'an unknown checkout'}, which is no folder here.",
            next_step="Add --repo DIR, a checkout that has this commit.",
        )
    if ref != known.commit:
        remarks.append(f"the {role} is the commit that was measured, {known.commit[:12]}, whatever {ref} is now")
    return {"ref": known.commit, "repo": str(place)}


@dataclass
class _Inputs:
    """The files that a stored campaign read, found again here or in its folder."""

    campaign: Campaign
    working_directory: Path
    remarks: list[str]

    def placed(self, flags: str) -> str:
        """The flags with every input's place here; the same text where nothing had to be replaced."""
        words = shlex.split(flags)
        placed = list(self._words(words))
        return flags if placed == words else shlex.join(placed)

    def _words(self, words: list[str]) -> Iterator[str]:
        previous = ""
        for word in words:
            flag, separator, value = word.partition("=")
            if separator and flag in INPUT_FLAGS:
                yield f"{flag}={self._place(flag, value)}"
            else:
                yield self._place(previous, word) if previous in INPUT_FLAGS else word
            previous = word

    def _place(self, flag: str, value: str) -> str:
        if value in NO_FILES or "://" in value:
            return value
        expanded = shared_words(shlex.quote(value))[0]
        here, record = self.working_directory / expanded, self._record(value, expanded)
        is_file = here.is_file()
        if is_file and (record is None or file_sha256(here) == record.sha256):
            return value
        what = f"{flag} {redact(expanded)}"
        copy = None if record is None else self._kept_copy(record)
        if record is None or copy is None:
            state = "is another file here than the one that was used" if is_file else "is not here"
            raise UsageError(
                f"{what} {state}, and {self.campaign.directory} keeps no copy of it.",
                next_step=f"Put it there{'' if record is None else f' (SHA-256 {record.sha256})'}; relative paths are "
                f"looked up from {self.working_directory}.",
            )
        state = "is another file here" if is_file else "is not here"
        remark = f"{what} {state}: the copy in the stored campaign's folder is used"
        self.remarks += [] if remark in self.remarks else [remark]
        return str(copy)

    def _record(self, value: str, expanded: str) -> InputFile | None:
        """What the campaign noted of a file; ``{plan_dir}`` was another folder there."""
        tail = value.removeprefix(PLAN_DIR) if value.startswith(PLAN_DIR) else None
        for file in self.campaign.inputs:
            if file.argument in (redact(expanded), value) or (tail and file.argument.endswith(tail)):
                return file
        return None

    def _kept_copy(self, record: InputFile) -> Path | None:
        if record.copy is None:
            return None
        root = self.campaign.directory.resolve()
        copy = (root / record.copy).resolve()
        if not copy.is_relative_to(root) or not copy.is_file():
            return None
        if file_sha256(copy) != record.sha256:
            raise FuseproofError(
                f"{self.campaign.directory / record.copy} is not the file whose hash {CAMPAIGN_FILE} holds.",
                next_step="Restore the folder; `fuseproof verify` names everything that has changed in it.",
            )
        return copy


def _cards(environment: Mapping[str, Any]) -> str:
    """``2 x NVIDIA H200``: the visible cards by name, or all where that is not recorded."""
    gpus = [gpu for gpu in environment.get("gpus") or () if isinstance(gpu, Mapping)]
    visible = set(environment.get("visible_gpu_uuids") or ())
    names = Counter(str(gpu.get("name")) for gpu in gpus if not visible or gpu.get("uuid") in visible)
    return ", ".join(name if amount == 1 else f"{amount} x {name}" for name, amount in sorted(names.items()))


def _drivers(environment: Mapping[str, Any]) -> str:
    gpus = [gpu for gpu in environment.get("gpus") or () if isinstance(gpu, Mapping)]
    return ", ".join(sorted({str(gpu.get("driver_version")) for gpu in gpus}))


def _processor(environment: Mapping[str, Any]) -> str:
    processor = environment.get("processor")
    return str(processor.get("model") or "") if isinstance(processor, Mapping) else ""


def _python(environment: Mapping[str, Any]) -> str:
    python = environment.get("python")
    return str(python.get("version") or "") if isinstance(python, Mapping) else ""
