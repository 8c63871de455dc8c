"""Weights of a campaign: found or fetched before slot 1, so that no slot ever downloads; cleaned up afterwards.

Slots of ``generate`` then run offline. A command manages its own weights; it is told of ``--model-cache-root``, and
with ``--cleanup-model-cache`` the repositories that its ``--model-path`` names are cleaned as well.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.cli.abba_weights_fetch import GIB, Planned, fetcher, refuse_too_little_space
from fuseproof.cli.abba_weights_wanted import Wanted, wanted_weights
from fuseproof.errors import InvalidMeasurementError, UsageError
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.model_cache import CacheRoot
from fuseproof.harness.campaign.model_claims import Claim
from fuseproof.harness.campaign.model_files import CACHE, OFFLINE, ClaimedModel, Usage, usage_of
from fuseproof.harness.campaign.model_ledger import HeldWeights, chosen_root, cleaned_entry, entry
from fuseproof.harness.campaign.model_places import refuse_entangled_root, refuse_shared_root, shared_cache
from fuseproof.harness.machine.redaction import redact
from fuseproof.schedules.plan import Plan

if TYPE_CHECKING:
    from fuseproof.cli.abba_options import AbbaOptions


@dataclass(frozen=True)
class HubWeights:
    """Weights from the hub: into ``root``, or into the cache that each arm would use anyway where that is None."""

    root: Path | None = None
    cleans: bool = False
    remark: Callable[[str], None] = field(default=lambda text: None)

    @contextmanager
    def held(self, plan: Plan, directory: Path, working_directory: Path) -> Iterator[HeldWeights]:
        """Have all weights of ``plan`` in place while the block runs.

        Raises :class:`FuseproofError` for weights that cannot be had and :class:`InvalidMeasurementError` where the
        arms of a cell would run different commits of one model.
        """
        begun = None if self.root is not None else chosen_root(directory)
        chosen = self if begun is None else replace(self, root=begun[0], cleans=begun[1])
        wanted = wanted_weights(plan, working_directory, chosen.root)
        if chosen.root is None:
            yield HeldWeights(_variables(wanted, None), list(self._fetched(wanted, None)))
            return
        refuse_entangled_root(chosen.root, directory)
        if chosen.cleans or self.cleans:
            refuse_shared_root(chosen.root, os.environ)
        with replace(chosen, cleans=chosen.cleans or self.cleans)._claimed(wanted, directory) as weights:
            yield weights

    @contextmanager
    def _claimed(self, wanted: Sequence[Wanted], directory: Path) -> Iterator[HeldWeights]:
        """The same in a root of the user's choice, with a claim on what is used of it and a cleaning at the end."""
        if self.root is None:
            raise AssertionError("only a root of its own is claimed")
        cache, held = CacheRoot(self.root), HeldWeights()
        with cache.claimed(directory, _claims(wanted), cleans=self.cleans) as claim:
            try:
                for other, model, removal in [] if shared_cache(self.root, os.environ) else cache.sweep(claim):
                    killed = redact(other.campaign)
                    more = {"campaign": killed}
                    held.entries.append(cleaned_entry(model, removal, self.root, "killed", time.time(), more))
                    whose = f" that {killed} left when it was killed"
                    self._tell_removed(model, removal.removed, whose, removal.kept_because)
                held.entries += self._fetched(wanted, (cache, claim))
                held.variables = _variables(wanted, self.root)
                yield held
            finally:
                with Interrupts():
                    self._clean_up(cache, claim, held)

    def _clean_up(self, cache: CacheRoot, claim: Claim, held: HeldWeights) -> None:
        failed = sys.exception()
        status = "interrupted" if isinstance(failed, KeyboardInterrupt) else "failed"
        reason = status if failed is not None or held.campaign is None else held.campaign.status
        entries = []
        for model, removal in cache.release(claim):
            entries.append(cleaned_entry(model, removal, cache.root, reason, time.time()))
            self._tell_removed(model, removal.removed, "", removal.kept_because)
        held.note_cleaned(entries)

    def _tell_removed(self, model: ClaimedModel, removed: Usage, whose: str, kept_because: str | None = None) -> None:
        if kept_because is not None:
            self.remark(f"the weights of {model.model} are kept: {kept_because}")
        elif removed != Usage():
            amount = f"{removed.file_count} files, {_shown_size(removed.total_bytes)}"
            self.remark(f"removed the weights of {model.model} ({amount}){whose}")

    def _fetched(
        self, wanted: Sequence[Wanted], claimed: tuple[CacheRoot, Claim] | None
    ) -> Iterator[dict[str, object]]:
        """Fetch what is missing; a ledger line each."""
        root = {} if claimed is None else {"root": True, "root_id": claimed[0].root_id, "cleans": self.cleans}
        for want in (want for want in wanted if want.by_command):
            folder = _folder(want)
            usage = usage_of(folder)
            yield entry("by command", want.claimed(), want.cache, Usage(), usage, usage, more=root)
        own = [want for want in wanted if not want.by_command]
        if not own:
            return
        before = [usage_of(_folder(want)) for want in own]
        with fetcher() as process:
            planned = []
            for plan in process.plan([want.repository for want in own]):
                planned.append(plan)
                if claimed is not None and plan.commit is not None:
                    claimed[0].note_commit(claimed[1], plan.repository.name, plan.commit)
            _refuse_different_commits(own, planned)
            refuse_too_little_space(planned)
            self._announce(planned)
            process.fetch(sum(plan.declined is None for plan in planned))
        for want, plan, usage in zip(own, planned, before, strict=True):
            if plan.declined is not None:
                want.decline()
                self.remark(f"{want.model} is left to the slots to fetch: {plan.declined}")
                continue
            after = usage_of(_folder(want))
            event = "fetched" if plan.missing_bytes or after != usage else "found"
            model = replace(want.claimed(), commits=() if plan.commit is None else (plan.commit,))
            yield entry(event, model, want.cache, _difference(after, usage), usage, after, more=root)

    def _announce(self, planned: Sequence[Planned]) -> None:
        for plan in planned:
            if plan.missing_bytes:
                where = redact(str(plan.repository.cache))
                size = _shown_size(plan.missing_bytes)
                self.remark(f"fetching {plan.repository.name} at {plan.commit} before slot 1: {size} into {where}")


def weights_of(options: AbbaOptions, remark: Callable[[str], None]) -> HubWeights:
    """The weights as ``--model-cache-root`` and ``--cleanup-model-cache`` want them; refuses a shared root."""
    root = _named_root(options)
    return HubWeights(root, options.cleanup_model_cache, remark)


def _named_root(options: AbbaOptions) -> Path | None:
    """The folder that ``--model-cache-root`` names; :class:`UsageError` for one that can be none, or a shared one."""
    text = options.model_cache_root
    if text is None:
        return None
    try:
        root = Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(
            f"--model-cache-root is {text!r}, and there is no such home folder.", next_step="Give the full path."
        ) from error
    if root.exists() and not root.is_dir():
        raise UsageError(f"--model-cache-root {text} is a file; a folder was expected.", next_step="Choose another.")
    if options.cleanup_model_cache:
        refuse_shared_root(root, os.environ)
    return root


def refuse_unfit_root(options: AbbaOptions, directory: Path) -> None:
    """Raise :class:`UsageError` where ``--model-cache-root`` and the campaign's folder would lie in one another."""
    root = _named_root(options)
    if root is not None:
        refuse_entangled_root(root, directory)


def _variables(wanted: Sequence[Wanted], root: Path | None) -> dict[tuple[str, str], dict[str, str]]:
    """Cell and arm → the variables of its slots: the root, and no network where everything is in place."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for want in wanted:
        offline = {} if want.by_command or want.is_declined else OFFLINE
        for use in want.uses:
            found[use] = {**offline, **({} if root is None else {CACHE: str(root)})}
    return found


def _claims(wanted: Sequence[Wanted]) -> list[ClaimedModel]:
    """One claim a repository: two revisions of it are one folder of the cache."""
    found: dict[str, ClaimedModel] = {}
    for want in wanted:
        if want.model:
            claim = want.claimed()
            known = found.get(claim.folder, claim)
            by_slots = known.by_slots or claim.by_slots
            label = claim.label if known is claim else f"{known.label}, {claim.label}"
            found[claim.folder] = replace(known, by_slots=by_slots, label=label)
    return list(found.values())


def _refuse_different_commits(wanted: Sequence[Wanted], planned: Sequence[Planned]) -> None:
    """The arms of a cell must run the same weights: a branch and a tag may be two commits."""
    commits: dict[tuple[str, str], dict[str, str]] = {}
    for want, plan in zip(wanted, planned, strict=True):
        for cell, letter in want.uses:
            if plan.commit is not None:
                commits.setdefault((cell, want.model), {})[letter] = plan.commit
    for (cell, model), by_arm in commits.items():
        if len(set(by_arm.values())) > 1:
            told = ", ".join(f"arm {letter} runs {commit[:12]}" for letter, commit in sorted(by_arm.items()))
            raise InvalidMeasurementError(
                f"Cell {cell}: the arms would run different commits of {model}: {told}.",
                next_step="Give both arms one --revision.",
            )


def _shown_size(size_bytes: int) -> str:
    gib = size_bytes / GIB
    return f"{gib:.1f} GiB" if gib >= 1 else f"{gib:.2g} GiB"


def _folder(want: Wanted) -> Path:
    return want.cache / want.claimed().folder


def _difference(after: Usage, before: Usage) -> Usage:
    return Usage(
        after.file_count - before.file_count,
        after.weight_file_count - before.weight_file_count,
        after.total_bytes - before.total_bytes,
    )
