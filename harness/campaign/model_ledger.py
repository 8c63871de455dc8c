"""``model-cache.jsonl`` in a campaign folder: which weights the campaign used, what it fetched, and what it removed.

One line a model and event. ``event`` is ``found`` (everything lay in the cache), ``fetched``, ``by command`` (a
command of the user's own fetches what it needs) or ``cleaned``. What sglang's own ledger has too is named as there:
``model``, ``label``, ``exit_reason``, ``cache_dir``, ``cleaned_at_unix_s``, ``before`` and ``after`` with
``file_count``, ``weight_file_count``, ``total_bytes``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.model_cache import CacheRoot, Removal
from fuseproof.harness.campaign.model_files import ClaimedModel, Usage
from fuseproof.harness.machine.redaction import redact
from fuseproof.schedules.plan import Plan

LEDGER = "model-cache.jsonl"
RESTORE = "Restore it from the campaign."

SlotVariables = Mapping[tuple[str, str], Mapping[str, str]]
"""Cell and arm letter → what is added to the environment of its slots."""


class CampaignWeights(Protocol):
    """Has a campaign's weights in place while the block runs, and cleans up behind it."""

    def held(self, plan: Plan, directory: Path, working_directory: Path) -> AbstractContextManager[HeldWeights]: ...


@dataclass
class HeldWeights:
    """Weights that are in place: what the slots are told of them, and what the campaign's ledger says."""

    variables: SlotVariables = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)
    campaign: Campaign | None = None

    def adopt(self, campaign: Campaign) -> None:
        """Tell a campaign's slots where the weights are, and write its ledger."""
        self.campaign = campaign
        campaign.slot_variables = self.variables
        append(campaign.directory, self.entries)

    def note_cleaned(self, entries: Sequence[dict[str, Any]]) -> None:
        """Write what was removed; without a campaign folder there is no ledger, and nothing was measured."""
        if self.campaign is not None:
            append(self.campaign.directory, entries)


@dataclass(frozen=True)
class OwnWeights:
    """Every slot finds its weights itself."""

    @contextmanager
    def held(self, plan: Plan, directory: Path, working_directory: Path) -> Iterator[HeldWeights]:
        yield HeldWeights()


def entry(
    event: str,
    model: ClaimedModel,
    cache: Path,
    changed: Usage,
    before: Usage,
    after: Usage,
    *,
    exit_reason: str | None = None,
    cleaned_at_unix_s: float | None = None,
    more: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """One line. ``changed`` is what was fetched or removed; ``before`` and ``after`` are the model's whole folder."""
    return {
        "event": event,
        "model": model.model,
        "revision": model.revision,
        "commit": model.commit,
        "label": model.label,
        "exit_reason": exit_reason,
        "cache_dir": redact(str(cache)),
        "files": changed.file_count,
        "weight_files": changed.weight_file_count,
        "bytes": changed.total_bytes,
        "before": dataclasses.asdict(before),
        "after": dataclasses.asdict(after),
        "cleaned_at_unix_s": cleaned_at_unix_s,
        **(more or {}),
    }


def cleaned_entry(
    model: ClaimedModel,
    removal: Removal,
    cache: Path,
    exit_reason: str,
    now_s: float,
    more: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """The line of one repository that was cleaned, or kept because another campaign needs it."""
    kept = {} if removal.kept_because is None else {"kept_because": removal.kept_because}
    return entry(
        "cleaned",
        model,
        cache,
        removal.removed,
        removal.before,
        removal.after,
        exit_reason=exit_reason,
        cleaned_at_unix_s=round(now_s, 3),
        more={**kept, **(more or {})},
    )


def append(directory: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Add lines to a campaign's ledger; nothing for none."""
    if not entries:
        return
    text = "".join(json.dumps(values, allow_nan=False) + "\n" for values in entries)
    try:
        with (directory / LEDGER).open("a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise FuseproofError(f"{directory / LEDGER} cannot be written: {error.strerror or error}.") from error


def read(directory: Path) -> list[dict[str, Any]]:
    """The lines of a campaign's ledger; none where it has none. An unreadable line is an error that names it."""
    path = directory / LEDGER
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [(number, json.loads(line)) for number, line in enumerate(lines, 1) if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise FuseproofError(f"{path} cannot be read: {error}.", next_step=RESTORE) from error
    for number, values in found:
        if not isinstance(values, dict):
            raise FuseproofError(f"{path}, line {number}: {values!r} is no JSON object.", next_step=RESTORE)
    return [values for _, values in found]


def chosen_root(directory: Path) -> tuple[Path, bool] | None:
    """The root that a campaign began with, and whether it cleans; None where it used the ordinary cache.

    A ledger is made to be published: it holds no full path. So the folder that it names must know itself by the id
    that the ledger holds. Raises :class:`UsageError` where it does not, and :class:`FuseproofError` naming the key of
    a damaged line.
    """
    values = next((values for values in read(directory) if values.get("root")), None)
    if values is None:
        return None
    named, root_id, cleans = values.get("cache_dir"), values.get("root_id"), values.get("cleans")
    for key, value, kind in (("cache_dir", named, str), ("root_id", root_id, str), ("cleans", cleans, bool)):
        if not isinstance(value, kind):
            expected = "true or false" if kind is bool else "a text"
            raise FuseproofError(
                f"{directory / LEDGER}: key {key} is {value!r}, and {expected} was expected.", next_step=RESTORE
            )
    try:
        root = Path(str(named)).expanduser()
        is_it = root.is_absolute() and CacheRoot(root).root_id == root_id
    except (OSError, RuntimeError, ValueError):  # a link to itself, no such home folder, a NUL byte
        is_it = False
    if not is_it:
        flags = "--model-cache-root DIR" + (" --cleanup-model-cache" if cleans else "")
        raise UsageError(
            f"{directory / LEDGER} names the model cache {named!r}, and no folder here is the one that this campaign "
            "began with by that name: a ledger holds no private part of a path.",
            next_step=f"Name it: fuseproof abba --resume {directory} {flags}",
        )
    return root, bool(cleans)
