"""``fuseproof abba``: baseline and candidate in fresh processes, in A-B-B-A order, to a verdict."""

from __future__ import annotations

import json
import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli import exit_codes
from fuseproof.cli.abba_ablate import ablation_remark
from fuseproof.cli.abba_ablate_dry_run import idle_remark
from fuseproof.cli.abba_arms import check_plan
from fuseproof.cli.abba_dry_run import dry_run_lines
from fuseproof.cli.abba_from import plan_again, remarks_of
from fuseproof.cli.abba_lanes import check_gpus, lane_words, lanes_of
from fuseproof.cli.abba_options import AbbaOptions, options_from
from fuseproof.cli.abba_plan import build_plan
from fuseproof.cli.abba_planning import show_plan
from fuseproof.cli.abba_remarks import dummy_weights_remark, one_block_remark
from fuseproof.cli.abba_view import campaign_view
from fuseproof.cli.floor_choice import chosen_floor
from fuseproof.cli.generate import ARGUMENTS, RememberingCommand
from fuseproof.cli.option_fields import click_options
from fuseproof.cli.options import json_option
from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
    from fuseproof.harness.campaign.runner import Outcome
    from fuseproof.schedules.plan import Plan

SCHEMA = "fuseproof.abba/1"
CAMPAIGNS_FOLDER = "campaigns"


@click.command(cls=RememberingCommand)
@click.argument("plan", required=False)
@click_options(AbbaOptions)
@json_option("Print the result as strict JSON on stdout; with --dry-run, what would run.")
@click.pass_context
def abba(ctx: click.Context, /, **flags: Any) -> int:
    """Run baseline and candidate in A-B-B-A order and judge the difference.

    PLAN is a built-in plan (embedded, the default; embedded-high; longcat-image, longcat-image-edit,
    longcat-image-edit-turbo; ernie-image, ernie-image-turbo, ernie-image-compile; wan2.2-ti2v-5b; longlive2-t2v,
    longlive2-i2v; sglang-pr for two refs of an sglang checkout)
    or the path of a .toml file (docs/plan.md says what it may hold).
    Without a PLAN, arms given as flags or commands make their own; --candidate alone is compared with plain generate.
    Every slot is a fresh process; times, peak memory, outputs and hashes go to a new campaign
    folder with a report that can be pasted into a pull request.

    \b
    fuseproof abba
    fuseproof abba --baseline "--fastpaths=off" --candidate "--fastpaths=auto" --flags "--prompt 'a red circle'"
    fuseproof abba --baseline-command "./old {perf_dump}" --candidate-command "./new {perf_dump}"
    fuseproof abba --baseline-ref main --candidate-ref HEAD --flags "--prompt 'a red circle'"
    fuseproof abba sglang-pr --repo ../sglang --baseline-ref main --candidate-ref my-branch --cells qwen-image
    fuseproof abba longcat-image --cells lossless --ablate fastpaths --ablate-by alone
    fuseproof abba --quick --blocks 1
    fuseproof abba --from campaigns/embedded-20250101T120000Z

    Exit codes: 0 done (SAME and INCONCLUSIVE too), 1 an arm failed, 2 usage, 3 SLOWER, 4 outputs break their contract,
    5 --require not reached, 6 invalid measurement, 130 interrupted.
    """
    options = options_from(flags)
    if options.plan_for is not None:
        return show_plan(options)
    if options.quick:
        from fuseproof.cli.abba_quick import run_quick

        return run_quick(options, ctx.meta[ARGUMENTS])
    if options.dry_run:
        return _show_dry_run(options)
    directory, outcome = _run(options, ["fuseproof", "abba", *ctx.meta[ARGUMENTS]])
    if outcome.status == "interrupted":
        return _end_interrupted(directory, options)
    analysis = _write_report(directory)
    unmet = unmet_requirements(analysis, options)
    code = exit_codes.first_of(analysis.exit_code(), *unmet)
    if options.as_json:
        click.echo(json.dumps(_as_json(analysis, outcome, code), indent=2, allow_nan=False))
    else:
        _print_result(analysis)
        _show_picture(analysis, options)
    for sentence in unmet.values():
        click.echo(f"fuseproof: {sentence}", err=True)
    return code


def default_directory(name: str, moment: datetime) -> Path:
    """``campaigns/<name>-<UTC time>``, with a number behind it where that is taken."""
    stem = f"{name}-{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    folder = Path(CAMPAIGNS_FOLDER) / stem
    number = 2
    while folder.exists():
        folder = Path(CAMPAIGNS_FOLDER) / f"{stem}-{number}"
        number += 1
    return folder


def unmet_requirements(analysis: CampaignAnalysis, options: AbbaOptions) -> dict[int, str]:
    """What ``--require`` and ``--require-fastpaths`` miss: exit code and sentence."""
    from fuseproof.harness.statistics.verdict import Word

    unmet = {}
    slower = [f"{cell.name} is {cell.word}" for cell in analysis.cells if cell.word is not Word.FASTER]
    if options.require == "faster" and slower:
        unmet[exit_codes.NOT_REACHED] = f"--require faster is not reached: {', '.join(slower)}"
    unproven = [cell.name for cell in analysis.cells if not candidate_ran_fused(cell)]
    if options.require_fastpaths and unproven:
        where = ", ".join(unproven)
        unmet[exit_codes.INVALID] = (
            f"--require-fastpaths: the candidate's fast paths did not run in every slot of {where}"
        )
    return unmet


def candidate_ran_fused(cell: CellAnalysis) -> bool:
    """Whether every candidate slot that counts made fused calls; False where there is no such slot."""
    runs = cell.runs.of_arm("B")
    return bool(runs) and all(run.record.fused_calls > 0 for run in runs)


def picture_of_candidate(analysis: CampaignAnalysis) -> Path | None:
    """One picture that the candidate made in a slot that counts."""
    for cell in analysis.cells:
        for run in cell.runs.of_arm("B"):
            for output in run.record.outputs:
                return analysis.directory / run.record.directory / output.path
    return None


def difference_pictures(analysis: CampaignAnalysis) -> list[Path]:
    """The drawn differences of the cells whose outputs differ, in the order of the plan."""
    from fuseproof.harness.report.cell_pictures import difference_path

    named = [analysis.directory / difference_path(cell) for cell in analysis.cells if cell.outputs.worst is not None]
    return [path for path in named if path.is_file()]


def _run(options: AbbaOptions, command: list[str]) -> tuple[Path, Outcome]:
    from fuseproof.cli.abba_weights import refuse_unfit_root, weights_of
    from fuseproof.harness.campaign.gpu_rest import GpuWatch
    from fuseproof.harness.campaign.kept_bench import read_bench
    from fuseproof.harness.campaign.readiness import Readiness, unwatched_gpus_remark
    from fuseproof.harness.campaign.session import CampaignSession
    from fuseproof.harness.campaign.slots import ProcessExecutor
    from fuseproof.harness.machine.environment import describe
    from fuseproof.harness.machine.gpus import survey_gpus

    again = None if options.from_stored is None else plan_again(options)
    plan = again.plan if again is not None else _plan_of(options)
    if plan is not None and options.resume is None:
        check_plan(plan)
    gpus = survey_gpus()
    remark = None if plan is None or options.resume is not None else dummy_weights_remark(plan, gpus)
    unwatched = unwatched_gpus_remark(gpus)
    environment = describe(gpus=gpus)
    with lanes_of(options, gpus, environment, plan) as lanes, campaign_view() as observer:
        for text in lanes.remarks:
            observer.remark(text)
        if remark is not None:
            observer.remark(remark)
        if unwatched is not None:
            observer.remark(f"warning: {unwatched}")
        for text in [] if again is None else remarks_of(again, lanes.environment):
            observer.remark(text)
        session = CampaignSession(
            command=command,
            environment=lanes.environment,
            executor=ProcessExecutor(gpus=GpuWatch.of(environment)),
            observer=observer,
            make_runner=lanes.make_runner,
            devices=lanes.devices,
            plan_source=None if again is None else again.source,
            weights=weights_of(options, observer.remark),
            add_blocks=options.add_blocks or 0,
            floor=chosen_floor(options.floor, plan, lanes.environment),
            bench=None if options.bench is None else read_bench(options.bench),
            check_machine=None
            if options.allow_busy
            else Readiness(gpus, lanes.cuda_visible_devices).refuse_busy_machine,
        )
        if options.resume is not None:
            directory = Path(options.resume).absolute()
            return directory, session.resume(directory, plan)
        if plan is None:
            raise AssertionError("without --resume there is always a plan")
        directory = _directory(options, plan.name)
        refuse_unfit_root(options, directory)
        return directory, session.start(plan, directory)


def _plan_of(options: AbbaOptions) -> Plan | None:
    """The plan that the flags describe; None where a campaign is resumed and they say nothing of one."""
    return build_plan(options) if options.resume is None or options.shapes_plan else None


def _write_report(directory: Path) -> CampaignAnalysis:
    from fuseproof.harness.report import write_report

    try:
        return write_report(directory)
    except FuseproofError as error:
        command = shlex.join(["fuseproof", "report", str(_shown(directory))])
        error.next_step = f"Everything measured is kept; when that is mended, render it with: {command}"
        raise


def _directory(options: AbbaOptions, name: str) -> Path:
    if options.output is None:
        return default_directory(name, datetime.now(UTC)).absolute()
    try:
        return Path(options.output).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(
            f"--output is {options.output!r}, and there is no such home folder.",
            next_step="Give the folder's full path.",
        ) from error


def _show_dry_run(options: AbbaOptions) -> int:
    from fuseproof.cli.abba_weights import refuse_unfit_root
    from fuseproof.harness.campaign.arm_sessions import places_of
    from fuseproof.harness.campaign.estimates import dry_run
    from fuseproof.harness.campaign.folder import refuse_used_folder
    from fuseproof.harness.campaign.git_arms import resolve_arms, unmeasured_changes
    from fuseproof.harness.machine.gpus import survey_gpus

    again = None if options.from_stored is None else plan_again(options)
    plan = build_plan(options) if again is None else again.plan
    check_plan(plan)
    survey = survey_gpus()
    not_here = check_gpus(options, plan, survey)
    directory = _directory(options, plan.name)
    refuse_used_folder(directory)
    refuse_unfit_root(options, directory)
    worktrees = resolve_arms(plan, Path.cwd())
    planned = dry_run(plan, directory, places_of(plan, directory, "", Path.cwd(), worktrees))
    remarks = [] if again is None else list(again.remarks)
    remarks += [*not_here, *unmeasured_changes(plan, worktrees)]
    found = (ablation_remark(plan), idle_remark(plan, survey), one_block_remark(plan))
    remarks += [text for text in (*found, dummy_weights_remark(plan, survey)) if text]
    if options.as_json:
        click.echo(json.dumps(planned.to_json() | {"remarks": remarks}, indent=2, allow_nan=False))
    else:
        for line in dry_run_lines(plan, planned, _shown(directory), remarks):
            click.echo(line)
    return exit_codes.DONE


def _end_interrupted(directory: Path, options: AbbaOptions) -> int:
    shown = shlex.quote(str(_shown(directory)))
    click.echo(f"fuseproof: interrupted; finished slots are kept in {_shown(directory)}", err=True)
    what = "block that was interrupted" if not lane_words(options) else "blocks that were interrupted"
    again = " ".join(["fuseproof abba --resume", shown, *lane_words(options)])
    click.echo(f"  next: {again} goes on with the {what}.", err=True)
    if options.as_json:
        document = {
            "schema": SCHEMA,
            "directory": str(directory),
            "status": "interrupted",
            "exit_code": exit_codes.INTERRUPTED,
        }
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    return exit_codes.INTERRUPTED


def _print_result(analysis: CampaignAnalysis) -> None:
    for line in analysis.summary_lines():
        click.echo(line)
    click.echo(f"report: {_shown(analysis.directory / 'report.md')}")
    picture = picture_of_candidate(analysis)
    if picture is not None:
        click.echo(f"picture: {_shown(picture)}")
    for difference in difference_pictures(analysis):
        click.echo(f"difference: {_shown(difference)}")


def _show_picture(analysis: CampaignAnalysis, options: AbbaOptions) -> None:
    from fuseproof.cli.terminal_picture import show_picture

    picture = picture_of_candidate(analysis)
    if options.show and picture is not None:
        show_picture(picture, os.environ)


def _as_json(analysis: CampaignAnalysis, outcome: Outcome, code: int) -> dict[str, Any]:
    picture = picture_of_candidate(analysis)
    return {
        "schema": SCHEMA,
        "directory": str(analysis.directory),
        "status": outcome.status,
        "exit_code": code,
        "report": str(analysis.directory / "report.md"),
        "picture": None if picture is None else str(picture),
        "differences": [str(path) for path in difference_pictures(analysis)],
        "failures": [
            {"slot": record.id, "reason_code": record.reason_code, "reason": record.reason}
            for record in outcome.failures
        ],
        "analysis": analysis.to_json(),
    }


def _shown(path: Path) -> Path:
    """A path as a person types it: relative where it lies below the present folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
