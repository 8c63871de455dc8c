"""``fuseproof abba --quick``: both arms mounted in turn in this one process, for the inner loop of work on a kernel.

It prints numbers and never a verdict, and keeps no folder: what it writes lies in a temporary one that is removed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli import exit_codes
from fuseproof.cli.hash_seed import restart_with_fixed_hash_seed
from fuseproof.errors import FuseproofError, InvalidMeasurementError

if TYPE_CHECKING:
    from fuseproof.cli.abba_options import AbbaOptions
    from fuseproof.harness.analysis.quick import QuickCell
    from fuseproof.schedules.plan import Plan

SCHEMA = "fuseproof.quick/1"
THREADS = "OMP_NUM_THREADS"


@dataclass
class QuickResult:
    """What a quick run knows when it ends, however it ends."""

    plan: Plan
    remarks: tuple[str, ...]
    evidence_command: str
    cells: list[QuickCell] = field(default_factory=list)
    loads_ms: list[float] = field(default_factory=list)
    environment: Mapping[str, Any] = field(default_factory=dict)
    is_interrupted: bool = False
    failure: FuseproofError | None = None

    def exit_code(self, requires_fastpaths: bool) -> int:
        codes = {code for cell in self.cells for code in cell.exit_codes()}
        if requires_fastpaths and self.unfused_cells():
            codes.add(exit_codes.INVALID)
        if self.failure is not None:
            codes.add(self.failure.exit_code)
        if self.is_interrupted:
            codes.add(exit_codes.INTERRUPTED)
        return exit_codes.first_of(*codes)

    def unfused_cells(self) -> list[str]:
        """The cells in which a candidate run made no fused call, or none ran."""
        by_cell = {cell.name: cell.runs.of_arm("B") for cell in self.cells}
        return [name for name, runs in by_cell.items() if not runs or not all(run.record.fused_calls for run in runs)]

    @property
    def status(self) -> str:
        if self.is_interrupted:
            return "interrupted"
        return "complete" if self.failure is None else "failed"


def run_quick(options: AbbaOptions, arguments: Sequence[str]) -> int:
    """Check, load once, run every cell's slots, print. Returns the exit code."""
    from fuseproof.cli.abba_plan import build_plan
    from fuseproof.cli.abba_quick_dry_run import show_quick_dry_run
    from fuseproof.cli.abba_quick_next import evidence_command
    from fuseproof.cli.abba_quick_rules import arms_of

    if options.dry_run:
        return show_quick_dry_run(options)
    _use_the_environment_of_slots(arguments)  # before the folder: a process that is replaced removes nothing
    with tempfile.TemporaryDirectory(prefix="fuseproof-quick-") as temporary:
        folder = Path(temporary).resolve()
        plan = build_plan(options)
        _refuse_same_arms(plan)
        arms = arms_of(plan, folder)
        result = QuickResult(plan, (), evidence_command(arguments, options, plan))
        with _device(options, result, folder):
            _run_cells(result, arms, folder)
        _print(result, options)
        return result.exit_code(options.require_fastpaths)


def _run_cells(result: QuickResult, arms: Sequence[Any], folder: Path) -> None:
    """Fill ``result`` cell by cell; it ends with the first slot that fails, and with Ctrl-C."""
    from fuseproof.cli.abba_quick_slots import QuickRunner, cells_of
    from fuseproof.harness.analysis.quick import examine

    runner = QuickRunner(result.plan, folder, result.environment, _say)
    prepared = [(both, runs, runner.prepare(both)) for both, runs in cells_of(result.plan, tuple(arms))]
    try:
        for both, runs, quick_arms in prepared:
            try:
                runner.run(both, quick_arms, runs)
            except FuseproofError as error:
                result.failure = error
            except KeyboardInterrupt:
                result.is_interrupted = True
            cell = runs.whole_blocks()
            result.cells.append(examine(cell, result.plan, folder, result.environment, runs.warmups))
            if result.status != "complete":
                return
    finally:
        result.loads_ms = runner.loads_ms
        runner.close()


@contextmanager
def _device(options: AbbaOptions, result: QuickResult, folder: Path) -> Iterator[None]:
    """Describe the machine, say who else is on it, and keep campaigns off the devices meanwhile."""
    from fuseproof.harness.campaign.locking import campaign_locks, device_names
    from fuseproof.harness.campaign.readiness import Readiness
    from fuseproof.harness.machine.environment import describe
    from fuseproof.harness.machine.gpus import survey_gpus

    gpus = survey_gpus()
    result.environment = describe(gpus=gpus)
    with campaign_locks(folder, device_names(result.environment)):
        if not options.allow_busy:
            try:
                Readiness(gpus=gpus).refuse_busy_machine()
            except InvalidMeasurementError as error:
                result.remarks = (f"this machine is not quiet, and the times show it: {error.message}",)
        for remark in result.remarks:
            _say(remark)
        yield


def _refuse_same_arms(plan: Plan) -> None:
    from fuseproof.harness.campaign.arms import check_arms

    check_arms(plan)


def _use_the_environment_of_slots(arguments: Sequence[str]) -> None:
    """The hash seed and the number of threads that a slot of a campaign gets, unless the user has set them."""
    from fuseproof.harness.campaign.arms import default_overrides

    if "torch" not in sys.modules:  # its threads are counted when it is loaded
        os.environ.setdefault(THREADS, default_overrides()[THREADS])
    restart_with_fixed_hash_seed("abba", arguments)


def _print(result: QuickResult, options: AbbaOptions) -> None:
    from fuseproof.cli.abba_quick_text import quick_lines
    from fuseproof.cli.main import report_error
    from fuseproof.harness.escape import visible

    if options.as_json:
        code = result.exit_code(options.require_fastpaths)
        click.echo(json.dumps(as_json(result, code), indent=2, allow_nan=False))
    else:
        for line in quick_lines(result):
            click.echo(visible(line))
    for cell in result.cells:
        for reason in cell.objections:
            _say(f"{cell.name}: {reason.code}: {reason.detail}")
    if options.require_fastpaths and result.unfused_cells():
        where = ", ".join(result.unfused_cells())
        _say(f"--require-fastpaths: the candidate's fast paths did not run in every slot of {where}")
    if result.failure is not None:
        report_error(result.failure)
    if result.is_interrupted:
        _say("interrupted; nothing is kept, and the whole blocks that ran are printed")


def as_json(result: QuickResult, code: int) -> dict[str, Any]:
    """``fuseproof.quick/1``: strict JSON values. ``is_evidence`` is false whatever the numbers are."""
    from fuseproof.harness.analysis.quick import NO_EVIDENCE
    from fuseproof.harness.machine.redaction import redact

    return {
        "schema": SCHEMA,
        "is_evidence": False,
        "why": NO_EVIDENCE,
        "status": result.status,
        "exit_code": code,
        "failure": None if result.failure is None else redact(result.failure.message),
        "plan": result.plan.name,
        "title": result.plan.title,
        "primary": result.plan.primary,
        "loads_ms": list(result.loads_ms),
        "remarks": list(result.remarks),
        "cells": [cell.to_json() for cell in result.cells],
        "environment": dict(result.environment),
        "next_step": redact(result.evidence_command),
    }


def _say(text: str) -> None:
    from fuseproof.harness.escape import visible

    click.echo(f"fuseproof: {visible(text)}", err=True)
