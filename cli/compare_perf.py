"""``fuseproof compare-perf``: perf dumps side by side, or read as A-B-B-A blocks and judged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli.options import json_option
from fuseproof.cli.output_names import check_file_name
from fuseproof.errors import FuseproofError, InvalidMeasurementError, UsageError

if TYPE_CHECKING:
    from fuseproof.harness.perf.abba import AbbaComparison
    from fuseproof.harness.perf.comparison import PerfComparison
    from fuseproof.harness.perf.dump import PerfDump

FORCE_ADVICE = (
    "Measure the same request in the same way on both sides, or look at the numbers all the same with --force."
)


@dataclass(frozen=True)
class ComparePerfOptions:
    """What the user asked for; every rule between options is checked here."""

    files: tuple[Path, ...]
    report_format: str
    as_abba: bool
    order: str | None
    min_effect: float | None
    is_forced: bool
    as_json: bool
    output: Path | None

    def __post_init__(self) -> None:
        if len(self.files) < 2:
            raise UsageError(
                f"compare-perf needs at least 2 perf dumps, got {len(self.files)}.",
                next_step="Give the baseline's dump first, then the candidates'.",
            )
        if self.report_format == "sglang" and (self.as_abba or self.as_json):
            other = "--abba" if self.as_abba else "--json"
            raise UsageError(
                f"--format sglang is a fixed report and cannot be combined with {other}.",
                next_step=f"Leave out --format sglang or {other}.",
            )
        for name, value in (("--order", self.order), ("--min-effect", self.min_effect)):
            if value is not None and not self.as_abba:
                raise UsageError(f"{name} only means something with --abba.", next_step="Add --abba.")
        if self.output is not None and self.output.resolve() in {path.resolve() for path in self.files}:
            raise UsageError(
                f"--output {self.output} is one of the perf dumps to read.", next_step="Write to another file."
            )
        if self.output is not None:
            check_file_name(self.output, "--output")


class EffectShare(click.ParamType[float]):
    """A share from 0 to below 1, written ``1%`` or ``0.01``."""

    name = "effect"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share as a float; anything else is an error that says both forms."""
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1:
            self.fail(f"{text!r} is not an effect from 0 to below 100 %; write 1% or 0.01.", param, ctx)
        return share


@click.command("compare-perf")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, readable=False), metavar="BASELINE CANDIDATE...")
@click.option(
    "--format",
    "report_format",
    type=click.Choice(["default", "sglang"]),
    default="default",
    show_default=True,
    help="The full report, or sglang's own (same headings, columns and marks).",
)
@click.option("--abba", "as_abba", is_flag=True, help="Read the files as blocks of four runs and give a verdict.")
@click.option(
    "--order",
    metavar="ORDER",
    help="With --abba: who ran first in each block: ABBA [default], BAAB, mirrored, or a list such as ABBA,BAAB. Files "
    "come in the order they ran: A1 B1 B2 A2 for ABBA, B1 A1 A2 B2 for BAAB.",
)
@click.option(
    "--min-effect",
    type=EffectShare(),
    metavar="SHARE",
    help="With --abba: the smallest difference that matters, 1% or 0.01. [default: 1%]",
)
@click.option("--force", "is_forced", is_flag=True, help="Show numbers although the dumps record unequal work.")
@json_option()
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE instead of stdout.")
def compare_perf(**arguments: Any) -> int:
    """Compare perf dumps, ours or sglang's; the first is the baseline.

    Single runs are described, never judged. With --abba the files are A-B-B-A blocks, and worker E2E gets a verdict:
    FASTER, SLOWER, SAME or INCONCLUSIVE.

    Exit codes: 0 done, 1 unreadable file, 2 usage, 3 SLOWER (only with --abba), 6 unequal work.
    """
    options = ComparePerfOptions(**arguments)
    return _abba(options) if options.as_abba else _side_by_side(options)


def _side_by_side(options: ComparePerfOptions) -> int:
    from fuseproof.harness.perf.comparison import compare_dumps
    from fuseproof.harness.perf.dump import read_perf_dump
    from fuseproof.harness.perf.text import render_comparison

    dumps = [read_perf_dump(path) for path in options.files]
    comparison = compare_dumps(dumps)
    if options.report_format == "sglang":
        _sglang_report(comparison, dumps, options)
    elif options.as_json:
        _write(_json(comparison.to_json(is_forced=options.is_forced)), options.output)
    else:
        _write(render_comparison(comparison, is_forced=options.is_forced), options.output)
    if not comparison.is_equal_work and not options.is_forced:
        raise InvalidMeasurementError(_unequal_work(comparison), next_step=FORCE_ADVICE)
    return 0


def _sglang_report(comparison: PerfComparison, dumps: list[PerfDump], options: ComparePerfOptions) -> None:
    """sglang's format has no room for our warnings, so they go to stderr; unequal work leaves no report."""
    from fuseproof.harness.perf.sglang_report import missing_stage_notes, render_sglang_report
    from fuseproof.harness.perf.work import SPEED_FIELD

    if not comparison.is_equal_work and not options.is_forced:
        return
    doubts = [
        f"{check.label}: {note}" for check in comparison.work for note in check.notes if note.field == SPEED_FIELD
    ]
    for warning in (*missing_stage_notes(dumps), *doubts, *comparison.warnings):
        click.echo(f"fuseproof: warning: {warning}", err=True)
    if not comparison.is_equal_work:
        click.echo(f"fuseproof: warning: {_unequal_work(comparison)}", err=True)
    _write(render_sglang_report(dumps, timestamp=datetime.now()), options.output)


def _abba(options: ComparePerfOptions) -> int:
    from fuseproof.harness.perf.abba import compare_blocks
    from fuseproof.harness.perf.abba_text import render_abba
    from fuseproof.harness.perf.blocks import read_blocks
    from fuseproof.harness.statistics.comparison import Thresholds

    blocks = read_blocks(options.files, options.order or "ABBA")
    thresholds = Thresholds() if options.min_effect is None else Thresholds(min_effect=options.min_effect)
    comparison = compare_blocks(blocks, thresholds, is_forced=options.is_forced)
    _write(_json(comparison.to_json()) if options.as_json else render_abba(comparison), options.output)
    if comparison.exit_code == InvalidMeasurementError.exit_code:
        raise InvalidMeasurementError(_invalid(comparison), next_step=_next_step(comparison))
    return comparison.exit_code


def _unequal_work(comparison: PerfComparison) -> str:
    differences = [f"{difference} ({check.label})" for check in comparison.work for difference in check.blocking]
    return f"The dumps record unequal work: {'; '.join(differences)}."


def _invalid(comparison: AbbaComparison) -> str:
    return f"The blocks are invalid: {'; '.join(reason.detail for reason in comparison.verdict.reasons)}."


def _next_step(comparison: AbbaComparison) -> str:
    """Files in the wrong order are read again in the right one: --force is for unequal work alone."""
    steps = [reason.next_step for reason in comparison.verdict.reasons if reason.code != "UNEQUAL_WORK"]
    return steps[0] if steps else FORCE_ADVICE


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _write(text: str, output: Path | None) -> None:
    if output is None:
        _print(text)
        return
    from fuseproof.harness.atomic_files import write_text_atomically

    write_text_atomically(output, text)
    click.echo(f"Written: {output}", err=True)


def _print(text: str) -> None:
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise FuseproofError(f"Cannot write to stdout: {error.strerror or error}.") from error
