"""Where an arm's code came from: repository, ref, commit, local changes, the module it imports, its setup.

Kept once a campaign (``campaign.json``, with everything) and once a slot (``result.json``, what identifies the code).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.git_repository import open_repository
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.machine.environment import read_checkout
from fuseproof.harness.machine.redaction import redact
from fuseproof.schedules.plan import Arm

SLOT_KEYS = ("remote", "ref", "commit", "is_dirty", "diff_sha256")


@dataclasses.dataclass(frozen=True)
class SetupRecord:
    """The one run of an arm's ``setup``. ``log`` is relative to the campaign folder; ``seconds`` are wall time."""

    command: str
    exit_code: int
    seconds: float
    log_sha256: str
    log: str | None = None


@dataclasses.dataclass(frozen=True)
class ArmLineage:
    """Texts are redacted. ``reason`` says why there is no commit; ``module_file`` is relative to ``tree`` if inside."""

    repo: str | None = None
    remote: str | None = None
    ref: str | None = None
    commit: str | None = None
    is_dirty: bool | None = None
    diff_sha256: str | None = None
    reason: str | None = None
    tree: str | None = None
    submodules: tuple[str, ...] = ()
    python: str | None = None
    module: str | None = None
    module_file: str | None = None
    setup: SetupRecord | None = None

    def of_slot(self) -> dict[str, Any]:
        """What a slot's own record keeps of it."""
        return {key: getattr(self, key) for key in SLOT_KEYS}

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def lineage_from(values: Mapping[str, Any], source: str) -> dict[str, ArmLineage]:
    """Read ``campaign.json``'s ``lineage`` back, arm letter to lineage; an error names ``source`` and the key."""
    try:
        return _adapter().validate_python(dict(values))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise FuseproofError(f"{source}: key lineage.{key}: {problem['msg']}") from error


def plain_lineage(arm: Arm, working_directory: Path) -> ArmLineage:
    """Of an arm without a ref: fuseproof's own checkout for flags, the present checkout for a command."""
    if arm.command is None and arm.python is not None:
        return ArmLineage(reason="another Python's fuseproof; its dumps name their commit")
    if arm.command is None:
        own = read_checkout()
        return ArmLineage(commit=own.commit, is_dirty=own.is_dirty, diff_sha256=own.diff_sha256, reason=own.reason)
    try:
        repository = open_repository(working_directory)
        state = repository.state()
        remote = repository.remote_url()
    except FuseproofError as error:
        return ArmLineage(reason=error.message)
    return ArmLineage(redact(str(repository.top)), remote, None, state.commit, state.is_dirty, state.diff_sha256)


def short_commit(commit: str, is_dirty: bool | None, diff_sha256: str | None) -> str:
    """``<12 digits>``, ``+dirty`` and the first digits of the hash of its changes where there are any."""
    if not is_dirty:
        return commit[:12]
    changes = f"diff {diff_sha256[:12]}" if diff_sha256 else "untracked files"
    return f"{commit[:12]}+dirty ({changes})"


def lineage_commit(record: SlotRecord) -> str | None:
    """The commit that a slot's own record names, in the form of :func:`short_commit` but whole; None without one."""
    known = record.lineage or {}
    commit = known.get("commit")
    if not isinstance(commit, str) or not commit:
        return None
    return commit + short_commit(commit, known.get("is_dirty"), known.get("diff_sha256"))[12:]


@cache
def _adapter() -> TypeAdapter[dict[str, ArmLineage]]:
    return TypeAdapter(dict[str, ArmLineage])
