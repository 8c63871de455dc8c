"""Which hub repositories a plan's slots will load, read from their flags; nothing is fetched here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuseproof.cli.abba_arms import parsed_flags
from fuseproof.cli.abba_weights_fetch import Repository
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.arms import filled_template, generate_words
from fuseproof.harness.campaign.inputs import flag_values
from fuseproof.harness.campaign.model_files import CACHE_VARIABLES, ClaimedModel, hub_cache
from fuseproof.harness.machine.redaction import redact
from fuseproof.schedules.plan import Arm, Cell, Plan

DUMMY = "dummy"
PLACES = (Path("perf.json"), Path("outputs"))


@dataclass
class Wanted:
    """One repository at one revision in one cache, and the slots that load it (cell and arm letter).

    ``by_command``: a command fetches it itself; where its words name no repository, ``model`` is empty.
    """

    model: str
    revision: str | None
    cache: Path
    by_command: bool = False
    is_other_code: bool = False
    uses: list[tuple[str, str]] = field(default_factory=list)
    is_declined: bool = False

    @property
    def repository(self) -> Repository:
        return Repository(self.model, self.revision, self.cache, self.is_other_code)

    @property
    def label(self) -> str:
        return ", ".join(f"{cell}/{letter}" for cell, letter in self.uses)

    def claimed(self) -> ClaimedModel:
        """What a claim and the ledger say of it."""
        return ClaimedModel(self.model, self.label, self.revision, by_slots=self.by_command)

    def decline(self) -> None:
        """Leave it to the slots: ours is not the version that knows this pipeline."""
        self.is_declined = True


def wanted_weights(plan: Plan, working_directory: Path, root: Path | None) -> list[Wanted]:
    """Every hub repository that the slots of ``plan`` load; of commands only with a ``root``, which they are told of.

    Local folders, embedded checkpoints and ``--load-format dummy`` need nothing. Raises :class:`UsageError` where an
    arm's own ``env`` and ``root`` name two caches.
    """
    found: dict[tuple[object, ...], Wanted] = {}
    for cell in plan.cells:
        for letter, arm in zip(plan.letters, plan.arms.all, strict=True):
            _refuse_two_caches(arm, root)
            for want in _of_arm(arm, cell, working_directory, root):
                key = (want.model, want.revision, want.cache, want.by_command, want.is_other_code)
                found.setdefault(key, want).uses.append((cell.name, letter))
    return list(found.values())


def arms_of(plan: Plan) -> list[tuple[str, Arm]]:
    """Letter and arm, baseline first."""
    return list(zip(plan.letters, plan.arms.all, strict=True))


def _of_arm(arm: Arm, cell: Cell, working_directory: Path, root: Path | None) -> Iterator[Wanted]:
    cache = hub_cache({**os.environ, **arm.env}) if root is None else root
    if arm.command is not None:
        if root is not None:
            model, revision = _named(filled_template(arm, "perf.json", "outputs", cell=cell))
            is_hub = model is not None and _is_on_hub(model, working_directory)
            yield Wanted(model if model is not None and is_hub else "", revision, cache, by_command=True)
        return
    words = generate_words(arm, cell, *PLACES)
    is_other_code = arm.ref is not None or arm.python is not None
    model, revision, load_format = _scanned(words) if is_other_code else _parsed(words)
    if model is not None and load_format != DUMMY and _is_on_hub(model, working_directory):
        yield Wanted(model, revision, cache, is_other_code=is_other_code)


def _parsed(words: Sequence[str]) -> tuple[str | None, str | None, str | None]:
    options = parsed_flags(words)
    if isinstance(options, FuseproofError):
        return None, None, None
    return options.model_path, options.revision, options.load_format


def _scanned(words: Sequence[str]) -> tuple[str | None, str | None, str | None]:
    """Of flags that only another commit's `generate` may know: the three that matter, the last of each."""
    model, revision = _named(words)
    return model, revision, _last(words, "--load-format")


def _named(words: Sequence[str]) -> tuple[str | None, str | None]:
    return _last(words, "--model-path"), _last(words, "--revision")


def _last(words: Sequence[str], flag: str) -> str | None:
    values = [value for _, value in flag_values(words, (flag,))]
    return values[-1] if values else None


def _is_on_hub(model: str, working_directory: Path) -> bool:
    from fuseproof.pipelines.hub import is_repository_id

    return is_repository_id(model) and not (working_directory / Path(model)).exists()


def _refuse_two_caches(arm: Arm, root: Path | None) -> None:
    own = [name for name in CACHE_VARIABLES if name in arm.env]
    if root is not None and own:
        raise UsageError(
            f"The env of arm {arm.name!r} sets {own[0]}, and --model-cache-root names {redact(str(root))}.",
            next_step="Leave one out.",
        )
