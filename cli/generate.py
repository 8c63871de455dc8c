"""``fuseproof generate``: parse, check, run, report."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fuseproof.cli.config_file import merge_config
from fuseproof.cli.earlier_dump import earlier_dump_set_aside
from fuseproof.cli.generate_options import EXCLUSIVE_GROUPS, GenerateOptions
from fuseproof.cli.hash_seed import restart_with_fixed_hash_seed
from fuseproof.cli.option_fields import click_options
from fuseproof.cli.options import json_option
from fuseproof.cli.termination import sigterm_raises
from fuseproof.errors import InvalidMeasurementError

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
    """Generate images from text, and record how long each part took and what came out.

    Flags carry sglang-diffusion's names; booleans take --flag, --flag=true and --flag false. At the default quality the
    image is bit-identical to the one of --backend diffusers on the same machine.

    \b
    fuseproof generate --prompt "a red panda" --seed 42 --perf-dump-path perf.json
    """
    with sigterm_raises():
        options = options_of(ctx, flags)
        restart_with_fixed_hash_seed("generate", ctx.meta[ARGUMENTS])
        dump = _generate(options)
    if options.as_json:
        click.echo(json.dumps(dump, indent=2, allow_nan=False))
    else:
        click.echo(summary(dump))
    _refuse_missing_graphs(dump)
    _refuse_missing_fastpaths(dump)
    return 0


def options_of(ctx: click.Context, flags: Mapping[str, Any]) -> GenerateOptions:
    """The options object that the parsed flags and their config file amount to; raises :class:`UsageError`."""
    return GenerateOptions(**merge_config(ctx, flags, flags["config"], EXCLUSIVE_GROUPS))


def summary(dump: dict[str, Any]) -> str:
    """Times, raw hashes and fast paths, one line each (one hash line per image)."""
    timers = dump["timers"]
    denoise = "n/a" if timers["denoise_ms"] is None else f"{timers['denoise_ms'] / 1e3:.3f} s"
    apart = ", ".join(
        f"{name} {timers[key] / 1e3:.3f} s"
        for name, key in (("load", "load_ms"), ("warm-up", "warmup_ms"), ("compile", "compile_ms"))
        if timers[key]
    )
    worker, client = timers["worker_ms"] / 1e3, timers["client_ms"] / 1e3
    lines = [
        f"worker {worker:.3f} s, denoise {denoise}, client {client:.3f} s" + (f" (apart: {apart})" if apart else "")
    ]
    lines += [f"raw sha256 {output['raw_sha256']}" for output in dump["outputs"]]
    lines.append(fastpaths_line(dump["fastpaths"]))
    return "\n".join([*lines, graphs_line(dump["graphs"])] if dump["graphs"].get("captured") else lines)


def fastpaths_line(fastpaths: dict[str, Any]) -> str:
    """Which sites ran fused, which did not and why; sites that nobody asked for are left out."""
    told = []
    for name, site in (fastpaths.get("sites") or {}).items():
        if site["state"] == "off":
            continue
        calls = f" {site['calls_fused']} calls" if site["state"] in ("fused", "certified") else ""
        reason = f" ({site['reason']})" if site.get("reason") else ""
        told.append(f"{name} {site['state']}{calls}{reason}")
    return f"fast paths {fastpaths['requested']}: {', '.join(told) or 'none mounted'}"


def graphs_line(graphs: dict[str, Any]) -> str:
    """How many CUDA graphs were captured, and how the timed calls were answered."""
    told = ", ".join(f"{graphs[name]} {name}" for name in ("captured", "replayed", "missed", "unsupported"))
    return f"CUDA graphs: {told}"


def _refuse_missing_graphs(dump: dict[str, Any]) -> None:
    """The dump and the pictures stand, the bits are right; what was asked for was not measured."""
    from fuseproof.cli.generation import missing_graphs

    missing = missing_graphs(dump)
    if missing:
        raise InvalidMeasurementError(
            missing,
            next_step="The pictures are right and the dump is written, but its times are not those of CUDA graphs.",
        )


def _refuse_missing_fastpaths(dump: dict[str, Any]) -> None:
    from fuseproof.cli.fastpath_choices import NEXT_STEP
    from fuseproof.cli.generation import missing_fastpaths

    missing = missing_fastpaths(dump)
    if missing:
        raise InvalidMeasurementError(missing, next_step=NEXT_STEP)


def _generate(options: GenerateOptions) -> dict[str, Any]:
    from fuseproof.cli.generation import check_destinations, execute, prepare
    from fuseproof.cli.progress import stage_progress
    from fuseproof.harness.perf.dump import write_perf_dump

    dump_path = None if options.perf_dump_path is None else Path(options.perf_dump_path)
    check_destinations(options, 0)
    saved: list[Path] = []
    with earlier_dump_set_aside(dump_path, _say_kept):
        try:
            job = prepare(options)
            if options.log_level == "debug":
                click.echo(json.dumps(options.as_config(), indent=2), err=True)
            with stage_progress(options.log_level in ("debug", "info")) as observer:
                dump = execute(job, observer, saved.append)
            if dump_path is not None:
                write_perf_dump(dump_path, dump)
        except BaseException:
            with contextlib.suppress(OSError):  # a stdout that is full or gone must not hide why the run failed
                _say_saved(options, saved)
            raise
    _say_saved(options, saved)  # the run is done and its dump stands, whatever becomes of stdout
    if options.log_level != "error":
        for warning in dump["warnings"]:
            click.echo(f"fuseproof: warning: {warning}", err=True)
    return dump


def _say_saved(options: GenerateOptions, saved: list[Path]) -> None:
    for path in [] if options.as_json else saved:
        click.echo(f"Output saved to {path}")


def _say_kept(path: Path) -> None:
    click.echo(f"fuseproof: the dump of an earlier run is kept as {path}", err=True)
