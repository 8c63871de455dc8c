"""Warnings of a cell that its slots do not show: what the runner noted, and arms that were several commits."""

from __future__ import annotations

import re

from fuseproof.harness.analysis.equal_work import EqualWork
from fuseproof.harness.analysis.runs import ARM_WORDS, BASELINE, CellRuns
from fuseproof.harness.campaign.arm_programs import program_versions, short_contents
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


def program_warnings(runs: CellRuns) -> tuple[Reason, ...]:
    """That a file which one arm's command names was not the same in all of its runs."""
    found = []
    for arm in (BASELINE, runs.candidate):
        versions = program_versions(run.record for run in runs.of_arm(arm))
        differing = {name: contents for name, contents in versions.items() if len(contents) > 1}
        for name, contents in differing.items():
            told = ", ".join(map(short_contents, contents))
            found.append(
                Reason(
                    "PROGRAMS_DIFFER",
                    f"the {ARM_WORDS[arm]} runs had {len(contents)} different contents of {name}, which their command "
                    f"names (SHA-256 {told})",
                    "Measure every block of an arm with one program: a new campaign.",
                )
            )
    return tuple(found)


def short_commit(commit: str) -> str:
    """A commit's first twelve digits and what follows it ("+dirty ...")."""
    return re.sub(r"^([0-9a-f]{12})[0-9a-f]+", r"\1", commit)
