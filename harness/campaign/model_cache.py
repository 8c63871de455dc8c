"""Which files of a model cache a campaign fetched, so that it can remove those and no others.

Hub caches hold one folder a repository (``models--owner--name``: ``blobs``, ``refs``, ``snapshots``, ``trees``). A
campaign that uses a cache root of the user's choice leaves a *claim* there before it fetches: which repositories it
needs and which files lay in them. The claim outlives a killed campaign, so the next one can clean up after it; a lock
says whether its campaign still runs. Nothing here talks to the hub.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock

from fuseproof.errors import FuseproofError
from fuseproof.harness.atomic_files import write_text_atomically
from fuseproof.harness.campaign.model_files import ClaimedModel, Usage, fetched_files, listing, usage_of
from fuseproof.harness.machine.redaction import redact

STATE_FOLDER = ".fuseproof"
CLAIM_SCHEMA = "fuseproof.model-claim/1"


@dataclass
class Claim:
    """What one campaign uses of a cache root."""

    key: str
    campaign: str
    cleans: bool
    models: list[ClaimedModel] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"schema": CLAIM_SCHEMA, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class Removal:
    """What was removed of one repository, and why anything was kept."""

    removed: Usage
    before: Usage
    after: Usage
    kept_because: str | None = None


class CacheRoot:
    """A cache root that campaigns may share; every change of what lies there is made under its lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / STATE_FOLDER

    @contextlib.contextmanager
    def claimed(self, campaign: Path, models: Sequence[ClaimedModel], *, cleans: bool) -> Iterator[Claim]:
        """Hold a claim on ``models`` while the block runs. What a killed campaign left of them is taken over.

        The claim's file stays when the process is killed; :meth:`release` removes it.
        """
        key = hashlib.sha256(os.fsencode(campaign.absolute())).hexdigest()[:16]
        held = filelock.FileLock(self.state / f"{key}.lock")
        with _explained(self.root):
            self.state.mkdir(parents=True, exist_ok=True)
            with self._locked():
                held.acquire(timeout=0)
                claim = self._begun(key, campaign, models, cleans)
        try:
            yield claim
        finally:
            with _explained(self.root), self._locked():
                held.release()
                if not self._claim_file(key).exists():
                    (self.state / f"{key}.lock").unlink(missing_ok=True)

    def note_commit(self, claim: Claim, model: str, commit: str) -> None:
        """Write down which commit of ``model`` the claim's campaign is about to fetch."""
        with _explained(self.root), self._locked():
            stored = self._read(claim.key) or claim
            claim.models = [
                dataclasses.replace(known, commits=tuple(dict.fromkeys((*known.commits, commit))))
                if known.model == model
                else known
                for known in stored.models
            ]
            self._save(claim)

    def _save(self, claim: Claim) -> None:
        write_text_atomically(self._claim_file(claim.key), json.dumps(claim.to_json(), indent=2) + "\n")

    def release(self, claim: Claim) -> list[tuple[ClaimedModel, Removal]]:
        """Give up a claim; where it cleans, remove what its campaign fetched and nobody else needs."""
        with _explained(self.root), self._locked():
            claim = self._read(claim.key) or claim  # another campaign may have handed files over
            found = [(model, self._removed(claim, model)) for model in claim.models] if claim.cleans else []
            self._claim_file(claim.key).unlink(missing_ok=True)
            return found

    def sweep(self, present: Claim) -> list[tuple[Claim, ClaimedModel, Removal]]:
        """Clean up after campaigns that were killed before they could, and forget them."""
        found: list[tuple[Claim, ClaimedModel, Removal]] = []
        with _explained(self.root), self._locked():
            for claim in self._others(present.key):
                if self._is_running(claim):
                    continue
                if claim.cleans:
                    found += [(claim, model, self._removed(claim, model, is_over=True)) for model in claim.models]
                self._claim_file(claim.key).unlink(missing_ok=True)
                (self.state / f"{claim.key}.lock").unlink(missing_ok=True)
        return found

    def _begun(self, key: str, campaign: Path, models: Sequence[ClaimedModel], cleans: bool) -> Claim:
        own = self._read(key)
        earlier = {} if own is None else {model.folder: model for model in own.models}
        found = []
        for model in models:
            known = earlier.get(model.folder)
            before = self._before(model, cleans) if known is None else known.before
            commits = model.commits if known is None else known.commits
            found.append(dataclasses.replace(model, before=before, commits=commits))
        wanted = {model.folder for model in found}
        found += [model for model in earlier.values() if model.folder not in wanted]
        claim = Claim(key, str(campaign.absolute()), cleans, found)
        self._save(claim)
        return claim

    def _before(self, model: ClaimedModel, cleans: bool) -> tuple[str, ...]:
        """What lies there already, less what a killed campaign fetched: that is now this one's to keep or to remove."""
        folder = self.root / model.folder
        left: set[str] = set()
        for other in self._others(""):
            shared = [known for known in other.models if known.folder == model.folder]
            if not shared or self._is_running(other):
                continue
            if cleans and other.cleans:
                left.update(name for known in shared for name in fetched_files(folder, known, is_over=True))
            self._save(dataclasses.replace(other, models=[known for known in other.models if known not in shared]))
        return tuple(name for name in listing(folder) if name not in left)

    def _removed(self, claim: Claim, model: ClaimedModel, *, is_over: bool = False) -> Removal:
        folder = self.root / model.folder
        names, before = fetched_files(folder, model, is_over=is_over), usage_of(folder)
        needed_by = next((other for other in self._others(claim.key) if self._uses(other, model)), None)
        if names and needed_by is not None:
            self._hand_over(needed_by, model, names)
            return Removal(Usage(), before, before, f"{redact(needed_by.campaign)} needs them")
        removed = usage_of(folder, names)
        for name in names:
            (folder / name).unlink(missing_ok=True)
        _remove_empty_folders(folder)
        return Removal(removed, before, usage_of(folder))

    def _uses(self, other: Claim, model: ClaimedModel) -> bool:
        return self._is_running(other) and any(known.folder == model.folder for known in other.models)

    def _hand_over(self, other: Claim, model: ClaimedModel, names: Sequence[str]) -> None:
        """A running campaign that cleans as well removes the files at its own end."""
        if not other.cleans:
            return
        left = [
            dataclasses.replace(known, before=tuple(name for name in known.before if name not in set(names)))
            if known.folder == model.folder
            else known
            for known in other.models
        ]
        self._save(dataclasses.replace(other, models=left))

    def _others(self, key: str) -> list[Claim]:
        keys = sorted(path.stem for path in self.state.glob("*.json"))
        return [claim for other in keys if other != key and (claim := self._read(other)) is not None]

    def _is_running(self, claim: Claim) -> bool:
        lock = filelock.FileLock(self.state / f"{claim.key}.lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            return True
        lock.release()
        return False

    def _read(self, key: str) -> Claim | None:
        try:
            values = json.loads(self._claim_file(key).read_text(encoding="utf-8"))
            models = [
                ClaimedModel(**{**model, "before": tuple(model["before"]), "commits": tuple(model["commits"])})
                for model in values["models"]
            ]
            return Claim(key, str(values["campaign"]), bool(values["cleans"]), models)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise FuseproofError(
                f"{redact(str(self._claim_file(key)))} is no claim of ours: {error}.",
                next_step="Remove it, and by hand what its campaign fetched.",
            ) from error

    def _claim_file(self, key: str) -> Path:
        return self.state / f"{key}.json"

    def _locked(self) -> filelock.BaseFileLock:
        return filelock.FileLock(self.state / "root.lock")


def _remove_empty_folders(folder: Path) -> None:
    """Folders of a repository that hold nothing any more, and its own when all of them are gone."""
    for place, _, _ in sorted(os.walk(folder), reverse=True):
        with contextlib.suppress(OSError):
            Path(place).rmdir()


@contextlib.contextmanager
def _explained(root: Path) -> Iterator[None]:
    try:
        yield
    except filelock.Timeout as error:
        raise FuseproofError(
            f"Another campaign of the same folder uses the model cache {redact(str(root))}.",
            next_step="Wait until it has ended.",
        ) from error
    except OSError as error:
        raise FuseproofError(
            f"The model cache {redact(str(root))} cannot be used: {error.strerror or error}.",
            next_step="Point --model-cache-root at a folder that you can write.",
        ) from error
