"""Do the files that were measured equal those of another commit? A number belongs to code, not to a branch's name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.arm_lineage import ArmLineage
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.git_arms import OWN_MODULE
from fuseproof.harness.campaign.git_repository import GitRepository, open_repository

MOST_FILES = 8
PACKAGE_FILE = "__init__.py"


@dataclass(frozen=True)
class HeadComparison:
    """The candidate's files at the measured commit against those at ``head``; ``folder`` is ``""`` for the whole tree.

    ``differing`` are names that were changed, added or removed, sorted; ``is_dirty`` says that more was measured than
    the commit holds.
    """

    ref: str
    head: str
    measured: str
    is_dirty: bool
    folder: str
    files: int
    differing: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        return not self.differing and not self.is_dirty

    def sentence(self) -> str:
        """One sentence for a person."""
        where = f"below {self.folder}" if self.folder else "of the tree"
        if self.is_equal:
            same = "" if self.head == self.measured else f"; measured at {self.measured[:12]}"
            return f"head {self.head[:12]}: all {self.files} files {where} equal the measured ones{same}"
        if not self.differing:
            return f"measured with local changes that no commit holds, on top of {self.measured[:12]}"
        shown = ", ".join(self.differing[:MOST_FILES])
        more = f" and {len(self.differing) - MOST_FILES} more" if len(self.differing) > MOST_FILES else ""
        changes = " and with local changes" if self.is_dirty else ""
        return (
            f"measured on an earlier head ({self.measured[:12]}, not {self.head[:12]}){changes}: "
            f"{len(self.differing)} files {where} differ: {shown}{more}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "ref": self.ref,
            "head": self.head,
            "measured": self.measured,
            "is_dirty": self.is_dirty,
            "folder": self.folder,
            "files": self.files,
            "differing": list(self.differing),
            "is_equal": self.is_equal,
        }


def compare_head(campaign: Campaign, ref: str, repo: Path | None, working_directory: Path) -> HeadComparison:
    """Compare the candidate's measured commit with ``ref``.

    ``repo`` is the checkout to look in; None takes the campaign's own where it is on this machine, else the present
    folder's. Raises :class:`FuseproofError` when the campaign knows no commit of the candidate, and
    :class:`UsageError` when the repository does not hold one of the two.
    """
    measured = candidate_lineage(campaign)
    repository = _repository(measured, repo, working_directory)
    head = repository.resolve(ref)
    commit = repository.resolve(measured.commit or "")
    folder = _package_folder(campaign, measured, repository, commit)
    before, now = repository.files(commit, folder), repository.files(head, folder)
    differing = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return HeadComparison(ref, head, commit, bool(measured.is_dirty), folder, len(before), tuple(differing))


def candidate_lineage(campaign: Campaign) -> ArmLineage:
    """The candidate's lineage; of a campaign of an earlier version, the commit of fuseproof's own checkout."""
    known = campaign.lineage.get("B")
    if known is not None and known.commit is not None:
        return known
    own = campaign.environment.get("fuseproof")
    is_ours = campaign.plan.arms.candidate.command is None and campaign.origin is None
    if is_ours and isinstance(own, dict) and own.get("commit"):
        return ArmLineage(commit=own["commit"], is_dirty=own.get("is_dirty"), diff_sha256=own.get("diff_sha256"))
    reason = f": {known.reason}" if known is not None and known.reason else ""
    raise FuseproofError(
        f"{campaign.directory} records no commit of its candidate{reason.removesuffix('.')}.",
        next_step="Measure git refs: abba --baseline-ref … --candidate-ref ….",
    )


def _repository(measured: ArmLineage, repo: Path | None, working_directory: Path) -> GitRepository:
    if repo is not None:
        return open_repository(repo)
    if measured.repo is not None and Path(measured.repo).expanduser().is_dir():
        return open_repository(Path(measured.repo).expanduser())
    return open_repository(working_directory)


def _package_folder(campaign: Campaign, measured: ArmLineage, repository: GitRepository, commit: str) -> str:
    """The folder, relative to the tree, of the package that the candidate imports; ``""`` for the whole tree."""
    if (
        measured.tree is not None
        and measured.module_file is not None
        and not measured.module_file.startswith(("/", "~"))
    ):
        file = PurePosixPath(measured.module_file)
        return str(file.parent) if file.name == PACKAGE_FILE else str(file)
    if campaign.plan.arms.candidate.command is None:
        if not repository.files(commit, OWN_MODULE):
            raise UsageError(
                f"{repository.top} holds no folder {OWN_MODULE} at {commit[:12]}.",
                next_step="Name fuseproof's own checkout with --repo.",
            )
        return OWN_MODULE
    return ""
