"""Rows that ``fastpaths verify`` and ``fastpaths bench`` print as they come, and how far they are."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from fuseproof.cli.fastpaths_checks import INTERPRETED

if TYPE_CHECKING:
    from fuseproof.fastpaths.verification import Outcome

SECONDS_BETWEEN_REMARKS = 10.0


class Remarks:
    """Says on stderr now and then how many of ``total`` are done, and at this pace how long the rest takes."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._total = self._done = 0
        self._started = self._said = time.monotonic()

    def expect(self, total: int) -> None:
        """Counting and the clock begin here."""
        self._total, self._started = total, time.monotonic()
        self._said = self._started

    def one_done(self) -> None:
        """Count one more."""
        self._done += 1
        now = time.monotonic()
        if now - self._said < SECONDS_BETWEEN_REMARKS or self._done >= self._total:
            return
        self._said = now
        left = (now - self._started) / self._done * (self._total - self._done)
        click.echo(f"fuseproof: {self._done} of {self._total} {self._what}, about {left:.0f} s left", err=True)


class VerifyRows:
    """One line a kernel and workload, printed when its last case is done; a line more for every case not equal."""

    def __init__(self, *, is_interpreted: bool, speaks: bool) -> None:
        self.outcomes: list[Outcome] = []
        self._speaks = speaks
        self._group: list[Outcome] = []
        self._remarks = Remarks("cases")
        if speaks and is_interpreted:
            click.echo(INTERPRETED)

    def expect(self, total: int) -> None:
        """How many outcomes there will be."""
        self._remarks.expect(total)

    def add(self, outcome: Outcome) -> None:
        """Keep one outcome, and print the group that it ends."""
        self.outcomes.append(outcome)
        if self._group and _call(self._group[0]) != _call(outcome):
            self.end()
        self._group.append(outcome)
        self._remarks.one_done()

    def end(self) -> None:
        """Print the group that was under way."""
        group, self._group = self._group, []
        if not group or not self._speaks:
            return
        first = group[0]
        equal = sum(member.state == "equal" for member in group)
        name = first.operation if first.operation == first.site else f"{first.site} ({first.operation})"
        click.echo(f"{equal:>2}/{len(group):<2} equal  {name:<54}  {first.workload:<24}  {first.shapes}")
        for member in group:
            if member.state != "equal":
                click.echo(f"       {member.state}: {member.values}: {member.reason}")


def _call(outcome: Outcome) -> tuple[str, str, str, str]:
    return outcome.site, outcome.operation, outcome.workload, outcome.shapes
