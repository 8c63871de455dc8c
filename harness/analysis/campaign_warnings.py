"""Warnings of a cell that its slots do not show: what the runner noted, and arms that were several commits."""

from __future__ import annotations

import re

from fuseproof.harness.analysis.equal_work import EqualWork
from fuseproof.harness.analysis.runs import ARM_WORDS, BASELINE, CellRuns
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.statistics.reasons import Reason


def noted_warnings(campaign: Campaign, runs: CellRuns) -> tuple[Reason, ...]:
    """What the runner noted about a cell's arms."""
    arms = (BASELINE, runs.candidate)
    noted = [warning for warning in campaign.warnings if warning.cell == runs.cell.name and warning.arm in arms]
    return tuple(Reason(warning.code, warning.detail, warning.next_step) for warning in noted)


def commit_warnings(equal_work: EqualWork) -> tuple[Reason, ...]:
    """That one arm's runs were of several commits."""
    return tuple(
        Reason(
            "COMMITS_DIFFER",
            f"the {ARM_WORDS[arm]} runs have {len(commits)} different commits: {', '.join(map(short_commit, commits))}",
            "Measure every block of an arm at one commit.",
        )
        for arm, commits in equal_work.commits
        if len(commits) > 1
    )


def short_commit(commit: str) -> str:
    """A commit's first twelve digits and what follows it ("+dirty ...")."""
    return re.sub(r"^([0-9a-f]{12})[0-9a-f]+", r"\1", commit)
