"""``fuseproof generate``: parse, check, run, report."""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from fuseproof.cli.config_file import merge_config
from fuseproof.cli.earlier_dump import earlier_dump_set_aside
from fuseproof.cli.generate_options import EXCLUSIVE_GROUPS, GenerateOptions
from fuseproof.cli.generate_summary import summary
from fuseproof.cli.hash_seed import restart_with_fixed_hash_seed
from fuseproof.cli.option_fields import click_options
from fuseproof.cli.options import json_option
from fuseproof.cli.profile_capture import quieten
from fuseproof.cli.profile_folders import refuse_taken_beside
from fuseproof.cli.terminal_picture import show_picture
from fuseproof.errors import FuseproofError, InvalidMeasurementError

ARGUMENTS = "fuseproof.generate.arguments"


class RememberingCommand(click.Command):
    """Keeps the arguments as typed, which the one restart of the process must match."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remember, then parse."""
        ctx.meta[ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)


@click.command(cls=RememberingCommand)
@click_options(GenerateOptions)
@json_option("Print the perf dump on stdout instead of text.")
@click.pass_context
def generate(ctx: click.Context, /, **flags: Any) -> int:
    """Generate images or clips from text, or edit an image, and record how long each part took and what came out.

    Flags carry sglang-diffusion's names; booleans take --flag, --flag=true and --flag false. At the default quality the
    image is bit-identical to the one of --backend diffusers on the same machine.

    \b
    fuseproof generate --prompt "a red circle above a blue square" --seed 42 --perf-dump-path perf.json
    """
    options = options_of(ctx, flags)
    restart_with_fixed_hash_seed("generate", ctx.meta[ARGUMENTS])
    dump = _generate(options)
    if options.as_json:
        click.echo(json.dumps(dump, indent=2, allow_nan=False))
    else:
        click.echo(summary(dump))
    _refuse_what_is_wrong(dump)
    return 0


def options_of(ctx: click.Context, flags: Mapping[str, Any]) -> GenerateOptions:
    """The options object that the parsed flags and their config file amount to; raises :class:`UsageError`."""
    return GenerateOptions(**merge_config(ctx, flags, flags["config"], EXCLUSIVE_GROUPS))


def _refuse_what_is_wrong(dump: dict[str, Any]) -> None:
    """The dump and the pictures stand; what they may not be taken for is an error: a failed check before the rest."""
    from fuseproof.cli.fastpath_choices import NEXT_STEP
    from fuseproof.cli.generate_record import failed_check, missing_fastpaths, missing_graphs

    failed = failed_check(dump)
    if failed:
        raise FuseproofError(
            failed, next_step="Mend the site, or leave it out of --fastpaths; the dump holds the whole report."
        )
    missing = missing_graphs(dump)
    if missing:
        raise InvalidMeasurementError(
            missing,
            next_step="The pictures are right and the dump is written, but its times are not those of CUDA graphs.",
        )
    missing = missing_fastpaths(dump)
    if missing:
        raise InvalidMeasurementError(missing, next_step=NEXT_STEP)


def _generate(options: GenerateOptions) -> dict[str, Any]:
    from fuseproof.cli.generate_destinations import check_destinations
    from fuseproof.cli.generation import execute, prepare
    from fuseproof.cli.progress import stage_progress
    from fuseproof.harness.perf.dump import write_perf_dump

    dump_path = None if options.perf_dump_path is None else Path(options.perf_dump_path)
    check_destinations(options, 0)
    refuse_taken_beside(options)
    saved: list[Path] = []
    with earlier_dump_set_aside(dump_path, _say_kept):
        try:
            if options.profile:
                quieten()
            job = prepare(options)
            if options.log_level == "debug":
                click.echo(json.dumps(options.as_config(), indent=2), err=True)
            _say_warnings(options, job.warnings)  # what is known before the work, before it
            with stage_progress(options.log_level in ("debug", "info")) as observer:
                dump = execute(job, observer, saved.append)
            if dump_path is not None:
                write_perf_dump(dump_path, dump)
        except BaseException as error:
            if options.log_level == "debug" and isinstance(error, FuseproofError) and error.__cause__ is not None:
                click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
            with contextlib.suppress(OSError):  # a stdout that is full or gone must not hide why the run failed
                _say_saved(options, saved)
            raise
    _say_saved(options, saved)  # the run is done and its dump stands, whatever becomes of stdout
    _say_warnings(options, [warning for warning in dump["warnings"] if warning not in job.warnings])
    return dump


def _say_warnings(options: GenerateOptions, warnings: Iterable[str]) -> None:
    if options.log_level != "error":
        for warning in warnings:
            click.echo(f"fuseproof: warning: {warning}", err=True)


def _say_saved(options: GenerateOptions, saved: list[Path]) -> None:
    for path in [] if options.as_json else saved:
        click.echo(f"Output saved to {path}")
        if options.show:
            show_picture(path, os.environ)


def _say_kept(path: Path) -> None:
    click.echo(f"fuseproof: the dump of an earlier run is kept as {path}", err=True)
