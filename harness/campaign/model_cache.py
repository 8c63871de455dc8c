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
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.atomic_files import write_text_atomically
from fuseproof.harness.campaign.model_claims import COMMIT, Claim, claim_of
from fuseproof.harness.campaign.model_files import ClaimedModel, Usage, fetched_files, listing, usage_of
from fuseproof.harness.campaign.model_places import STATE_FOLDER, reason_to_keep, remove_empty_folders, remove_files
from fuseproof.harness.machine.redaction import redact

ROOT_ID_FILE = "root.id"
LAYOUT = ("blobs", "refs", "snapshots", "trees", ".no_exist")
_ROOT_ID = re.compile(r"[0-9a-f]{32}")


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
        self.root = root.resolve()  # a link that is turned elsewhere while we run moves nothing that we remove
        self.state = self.root / STATE_FOLDER

    @property
    def root_id(self) -> str | None:
        """What a campaign's ledger names this root by; None where no campaign has used it."""
        try:
            text = (self.state / ROOT_ID_FILE).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
        return text if _ROOT_ID.fullmatch(text) else None

    @contextlib.contextmanager
    def claimed(self, campaign: Path, models: Sequence[ClaimedModel], *, cleans: bool) -> Iterator[Claim]:
        """Hold a claim on ``models`` while the block runs. What a killed campaign left of them is taken over.

        The claim's file stays when the process is killed; :meth:`release` removes it.
        """
        key = hashlib.sha256(os.fsencode(campaign.absolute())).hexdigest()[:16]
        held = filelock.FileLock(self.state / f"{key}.lock")
        with _explained(self.root):
            self._refuse_links(models if cleans else ())
            self.state.mkdir(parents=True, exist_ok=True)
            with self._locked():
                if self.root_id is None:
                    write_text_atomically(self.state / ROOT_ID_FILE, secrets.token_hex(16) + "\n")
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
        """Write down which commit of ``model`` the claim's campaign is about to fetch.

        A claim that is gone meanwhile is not made again: what lay there before is no longer known.
        """
        with _explained(self.root), self._locked():
            stored = self._read(claim.key)
            if stored is None or not COMMIT.fullmatch(commit):
                return
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
            stored = self._read(claim.key)  # another campaign may have handed files over
            if stored is None:
                kept = f"the claim in {redact(str(self.state))} is gone, and with it what was fetched here"
                return [(model, self._kept(model, kept)) for model in claim.models] if claim.cleans else []
            claim = stored
            found = [(model, self._removed(claim, model)) for model in claim.models] if claim.cleans else []
            self._claim_file(claim.key).unlink(missing_ok=True)
            return found

    def sweep(self, present: Claim) -> list[tuple[Claim, ClaimedModel, Removal]]:
        """Clean up after campaigns that were killed before they could, and forget them.

        Claims of another root that were copied here with its files are forgotten only.
        """
        found: list[tuple[Claim, ClaimedModel, Removal]] = []
        with _explained(self.root), self._locked():
            for claim in self._others(present.key):
                if self._is_running(claim):
                    continue
                if claim.cleans and claim.root == self._identity():
                    found += [(claim, model, self._removed(claim, model, is_over=True)) for model in claim.models]
                self._claim_file(claim.key).unlink(missing_ok=True)
                (self.state / f"{claim.key}.lock").unlink(missing_ok=True)
        return found

    def _begun(self, key: str, campaign: Path, models: Sequence[ClaimedModel], cleans: bool) -> Claim:
        own = self._read(key)
        own = own if own is not None and own.root == self._identity() else None
        earlier = {} if own is None else {model.folder: model for model in own.models}
        found = []
        for model in models:
            known = earlier.get(model.folder)
            before = self._before(model, cleans) if known is None else known.before
            commits = model.commits if known is None else known.commits
            found.append(dataclasses.replace(model, before=before, commits=commits))
        wanted = {model.folder for model in found}
        found += [model for model in earlier.values() if model.folder not in wanted]
        claim = Claim(key, str(campaign.absolute()), cleans, found, self._identity())
        self._save(claim)
        return claim

    def _before(self, model: ClaimedModel, cleans: bool) -> tuple[str, ...]:
        """What lies there already, less what a killed campaign fetched: that is now this one's to keep or to remove."""
        folder = self.root / model.folder
        left: set[str] = set()
        for other in self._others(""):
            shared = [known for known in other.models if self._is_same(known, model)]
            if not shared or self._is_running(other):
                continue
            if cleans and other.cleans and other.root == self._identity():
                left.update(name for known in shared for name in fetched_files(folder, known, is_over=True))
            self._save(dataclasses.replace(other, models=[known for known in other.models if known not in shared]))
        return tuple(name for name in listing(folder) if name not in left)

    def _removed(self, claim: Claim, model: ClaimedModel, *, is_over: bool = False) -> Removal:
        folder = self.root / model.folder
        kept_because = reason_to_keep(self.root, model.folder, [Path(claim.campaign)])
        if kept_because is not None:
            return self._kept(model, kept_because)
        names, before = fetched_files(folder, model, is_over=is_over), usage_of(folder)
        needed_by = next((other for other in self._others(claim.key) if self._uses(other, model)), None)
        if names and needed_by is not None:
            self._hand_over(needed_by, model, names)
            return Removal(Usage(), before, before, f"{redact(needed_by.campaign)} needs them")
        removed = usage_of(folder, names)
        remove_files(self.root, [f"{model.folder}/{name}" for name in names])
        if names or not is_over:
            remove_empty_folders(self.root, self._own_folders(model, names))
        return Removal(removed, before, usage_of(folder))

    def _kept(self, model: ClaimedModel, because: str) -> Removal:
        usage = usage_of(self.root / model.folder)
        return Removal(Usage(), usage, usage, because)

    def _own_folders(self, model: ClaimedModel, names: Sequence[str]) -> list[str]:
        """Folders that a removal may leave empty: those of the removed files and of the commits, and their parents."""
        folder = self.root / model.folder
        commits = [f"{kind}/{commit}" for commit in model.commits for kind in ("snapshots", ".no_exist")]
        below = [
            str((Path(place) / name).relative_to(folder))
            for commit in commits
            for place, folders, _ in os.walk(folder / commit)
            for name in folders
        ]
        parents = {str(parent) for name in (*names, *below) for parent in Path(name).parents if parent.parts}
        skeleton = () if model.before else LAYOUT
        found = [f"{model.folder}/{name}" for name in (*parents, *below, *commits, *skeleton)]
        return found if model.before else [*found, model.folder]

    def _refuse_links(self, models: Sequence[ClaimedModel]) -> None:
        """What is cleaned must lie here: nothing of a root or a repository may be a link to somewhere else."""
        if self.state.is_symlink():
            raise UsageError(
                f"{redact(str(self.state))} is a link, and what campaigns note there is about this folder.",
                next_step="Point --model-cache-root at a folder of its own.",
            )
        for model in models:
            reason = reason_to_keep(self.root, model.folder, [])
            if reason is not None:
                raise UsageError(
                    f"--cleanup-model-cache would remove weights of {model.model}, and {reason}.",
                    next_step="Point --model-cache-root at a folder of its own, or leave --cleanup-model-cache out.",
                )

    def _identity(self) -> str:
        """This root and no copy of it: its path and its number on the disk."""
        return f"{self.root.stat().st_ino} {self.root}"

    def _is_same(self, model: ClaimedModel, other: ClaimedModel) -> bool:
        """Whether two repositories are one folder here: by name, or on a disk without case."""
        if model.folder == other.folder:
            return True
        try:
            return (self.root / model.folder).samefile(self.root / other.folder)
        except OSError:
            return False

    def _uses(self, other: Claim, model: ClaimedModel) -> bool:
        return self._is_running(other) and any(self._is_same(known, model) for known in other.models)

    def _hand_over(self, other: Claim, model: ClaimedModel, names: Sequence[str]) -> None:
        """A running campaign that cleans as well removes the files at its own end."""
        if not other.cleans:
            return
        left = [
            dataclasses.replace(known, before=tuple(name for name in known.before if name not in set(names)))
            if self._is_same(known, model)
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
            return claim_of(key, json.loads(self._claim_file(key).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FuseproofError(
                f"{redact(str(self._claim_file(key)))} is no claim of ours: {error}.",
                next_step="Remove it, and by hand what its campaign fetched.",
            ) from error

    def _claim_file(self, key: str) -> Path:
        return self.state / f"{key}.json"

    def _locked(self) -> filelock.BaseFileLock:
        return filelock.FileLock(self.state / "root.lock")


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
