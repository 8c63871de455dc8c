"""How much of a campaign goes into the main part of a report, and what moves into details or a second file.

A pull request's text ends at 65,536 characters and its readers long before: the main part stays below 6 kB. The first
layout that keeps both limits is used; what a smaller layout leaves out of the main part is always somewhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

MAIN_LIMIT_BYTES = 6_000
FEWEST_VERDICT_ROWS = 8
MOST_SHORT_CLAIMS = 2
WHOLE_LIMIT = 65_536
"""Bytes in UTF-8, hence at most as many characters."""

_DETAILS = re.compile(r"<details>.*?</details>", re.DOTALL)


@dataclass(frozen=True)
class Layout:
    """``rows`` is the largest number of cells a main table lists, ``workloads`` that of the setup's list;
    ``text_characters`` cuts prompts and flags. ``shows_all_timers`` also lists cells without anything to see.
    ``folds_commands`` moves the commands of Reproduce into details, where they need not be cut.
    ``has_figures`` draws runs, stages and single slots, for the eye. ``folds_ablation`` folds the table of an ablation.
    """

    rows: int
    workloads: int
    text_characters: int
    shows_all_timers: bool = False
    shows_blocks: bool = False
    has_cell_details: bool = True
    has_raw_runs: bool = True
    log_lines: int = 8
    folds_commands: bool = True
    has_figures: bool = False
    fewest_verdict_rows: int = FEWEST_VERDICT_ROWS
    folds_ablation: bool = False

    @property
    def verdict_rows(self) -> int:
        """How many cells the tables of verdicts and outputs list: a reader must see every word of a usual campaign."""
        return max(self.rows, self.fewest_verdict_rows)

    @property
    def claims(self) -> int:
        """How many workloads say in the main part what is claimed of them; the others are folded away."""
        return self.rows if self.shows_all_timers else min(self.rows, MOST_SHORT_CLAIMS)


FULL = Layout(8, 6, 240, shows_all_timers=True, shows_blocks=True, folds_commands=False)
MAIN_LAYOUTS = (
    FULL,
    Layout(8, 6, 160, shows_all_timers=True),
    Layout(40, 2, 100),
    Layout(30, 2, 100),
    Layout(20, 2, 80),
    Layout(12, 1, 60, log_lines=4),
    Layout(6, 1, 40, log_lines=2),
    Layout(2, 1, 20, log_lines=2),
)
ABLATION_LAYOUTS = (
    replace(FULL, fewest_verdict_rows=2),
    Layout(4, 2, 100, fewest_verdict_rows=2),
    Layout(2, 1, 40, log_lines=2, fewest_verdict_rows=1),
    Layout(2, 1, 40, log_lines=2, fewest_verdict_rows=1, folds_ablation=True),
    Layout(2, 1, 20, log_lines=2, fewest_verdict_rows=1, folds_ablation=True),
)
"""The section on the ablation has a row a fast path already, so the verdicts need not all be listed beside it."""
EVERYTHING = replace(FULL, rows=100_000, workloads=100, has_figures=True)
"""For HTML, which nobody pastes."""


def main_part(markdown: str) -> str:
    """The markdown without its folded details: what a reader sees first."""
    return _DETAILS.sub("", markdown)


def fits_main(markdown: str) -> bool:
    """Whether the unfolded part is short enough."""
    return len(main_part(markdown).encode("utf-8")) < MAIN_LIMIT_BYTES


def fits_whole(markdown: str) -> bool:
    """Whether the text can be pasted into a pull request."""
    return len(markdown.encode("utf-8")) < WHOLE_LIMIT
