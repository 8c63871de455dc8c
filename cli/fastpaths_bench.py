"""``fuseproof fastpaths bench``: eager chain, fused form and traffic floor of each kernel, bits first; and a guard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli import exit_codes
from fuseproof.cli.fastpaths_bench_calls import calls_of, chosen
from fuseproof.cli.fastpaths_bench_guard import (
    baseline_for,
    check_save_path,
    guard_code,
    guard_document,
    guard_lines,
    judged_against,
    save,
)
from fuseproof.cli.fastpaths_bench_rows import (
    Bench,
    Row,
    head_lines,
    head_of,
    line_of,
    markdown_head,
    markdown_line,
    selection_of,
)
from fuseproof.cli.fastpaths_checks import card, load_own, replay_of
from fuseproof.cli.fastpaths_names import check_site_names
from fuseproof.cli.option_fields import WholeNumber
from fuseproof.cli.options import json_option
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    import torch

    from fuseproof.fastpaths.benchmarking import Stopwatch

LARGEST_ELEMENTS = 1 << 32
LARGEST_EXTENTS = (9999, 9_999_999, 999_999)


class Shape(click.ParamType[tuple[int, ...]]):
    """``BxSxD``: samples, rows of text and picture together, width; or ``1xCxTxHxW``: frames in Wan's VAE."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        is_shape = re.fullmatch(r"[0-9]{1,7}(x[0-9]{1,7}){2}|1(x[0-9]{1,7}){4}", str(value))
        numbers = tuple(map(int, str(value).split("x"))) if is_shape else (0,)
        elements = 1
        for number in numbers:
            elements *= number
        is_stream = len(numbers) == len(LARGEST_EXTENTS)
        fits = not is_stream or all(one <= most for one, most in zip(numbers, LARGEST_EXTENTS, strict=True))
        if not 1 <= elements <= LARGEST_ELEMENTS or not fits or (is_stream and numbers[1] < 2):
            self.fail(
                f"{str(value)!r} is no shape BxSxD with S of 2 or more, such as 1x4608x3072, nor frames 1xCxTxHxW.",
                param,
                ctx,
            )
        return numbers

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show the form."""
        return "BxSxD|1xCxTxHxW"


@click.command("bench")
@click.option(
    "--model",
    metavar="MODEL",
    help="A family, a published id, embedded:FAMILY or a model folder. [default: the shapes of every family]",
)
@click.option("--site", "sites", multiple=True, metavar="NAME", help="Only this site or kernel; repeatable.")
@click.option(
    "--shape",
    "shapes",
    type=Shape(),
    multiple=True,
    help="Samples, rows and width in place of the model's; repeatable. Five numbers are frames of Wan's VAE, in each "
    "layout and pair of dtypes.",
)
@click.option("--from", "captured", metavar="FILE", help="Measure on the tensors that `capture` saved, nothing else.")
@click.option("--fastpaths-from", metavar="FILE", help="Python file with fast paths of your own, measured too.")
@click.option("--seed", type=WholeNumber(0, 2**63 - 1), default=0, show_default=True, help="Seed of the values.")
@click.option(
    "--baseline",
    metavar="FILE",
    help="Hold every row against this stored result of the same card and versions; exit code 3 where one is slower.",
)
@click.option("--save-baseline", metavar="FILE", help="Store this result, for --baseline of a later run.")
@click.option(
    "--ncu",
    "counted",
    metavar="NAME",
    help="Read this site's or kernel's hardware counters with Nsight Compute, too; alone, it is --site NAME as well.",
)
@click.option(
    "--ncu-report",
    metavar="FILE",
    help="Where --ncu leaves Nsight Compute's own report. [default: NAME.ncu-rep in this folder, under a free name]",
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the rows as a Markdown table.")
@json_option()
def bench(
    model: str | None,
    sites: tuple[str, ...],
    shapes: tuple[tuple[int, ...], ...],
    captured: str | None,
    fastpaths_from: str | None,
    seed: int,
    baseline: str | None,
    save_baseline: str | None,
    counted: str | None,
    ncu_report: str | None,
    as_markdown: bool,
    as_json: bool,
) -> int:
    """Time every kernel on a card: the eager chain, the fused form, and a copy of as many bytes.

    Needs a card. Inputs rotate over more memory than the cache holds. Each kernel's bits are compared first; one that
    differs gets no time and no speed-up, and the exit code is 1. Medians of CUDA-graph replays in several rounds, with
    the smallest and the largest. A row is printed as soon as it is measured; --model and --site narrow what is
    measured.

    With --baseline a row is slower only beyond the spread of both runs, alone and over its eager chain, and again in a
    second look (docs/fast-path-work.md).

    Exit codes: 1 other bits; 2 nothing was measured (no card, a baseline of another card or version, a wrong flag); 3
    slower than the baseline; 6 a row without a time that had one.
    """
    _refuse_useless(captured, sites, shapes, counted, ncu_report)
    if as_markdown and as_json:
        raise UsageError("--markdown and --json are two forms of the same result.", next_step="Choose one.")
    shapes = tuple(dict.fromkeys(shapes))
    if fastpaths_from is not None:
        card("bench")  # asked here, for a file of one's own imports torch
    own = load_own(fastpaths_from)
    check_site_names(sites, own)
    if counted is not None:
        from fuseproof.cli.fastpaths_bench_counters import counter_lines, counters_of, report_path

        check_site_names((counted,), own, "--ncu")
        report = report_path(ncu_report, counted)
        sites = sites or ((counted,) if captured is None else ())
    if save_baseline is not None:
        check_save_path(save_baseline, baseline, {"--from": captured, "--fastpaths-from": fastpaths_from})
    device = card("bench")
    head = head_of(device, seed, selection_of(model, sites, shapes, captured, own))
    stored = None if baseline is None else baseline_for(baseline, head)
    measuring = Bench(device, seed, _stopwatch(device), own)
    if captured is not None:
        measuring.take_replay(replay_of(captured, own, model))
    else:
        measuring.take_calls(chosen(calls_of(model, shapes, own, device), sites))
    rows = _printed(measuring.rows(), head, not as_json, as_markdown)
    document = head | {"calls": [measuring.entry(*row) for row in rows], "guard": None, "counters": None}
    code = exit_codes.FAILED if any(one.outcome.state == "differs" for _, one in rows) else exit_codes.DONE
    if save_baseline is not None:  # before anything that may fail: what was measured stays
        why_not = save(save_baseline, document)
        click.echo(f"fuseproof: {why_not or f'stored in {save_baseline}'}", err=True)
    wanted = _wanted(model, sites, shapes, captured, fastpaths_from, seed)
    try:
        if stored is not None and baseline is not None:
            judged = judged_against(stored, document, wanted)
            document["guard"] = guard_document(judged, baseline)
            code = exit_codes.first_of(code, guard_code(judged))
            _say(guard_lines(judged, baseline), as_json)
        if counted is not None:
            document["counters"] = counters_of(counted, document["calls"], wanted, report)
            _say(counter_lines(document["counters"]), as_json)
    finally:  # after an interrupt too: what was measured is told
        if as_json:
            click.echo(json.dumps(document, indent=2, allow_nan=False))
    return code


def _refuse_useless(
    captured: str | None,
    sites: Sequence[str],
    shapes: Sequence[Sequence[int]],
    counted: str | None,
    ncu_report: str | None,
) -> None:
    if captured is not None and (sites or shapes):
        raise UsageError("--from measures one captured call, so --site and --shape have no effect.")
    if ncu_report is not None and counted is None:
        raise UsageError(
            "--ncu-report is a file for Nsight Compute, and --ncu is not given.",
            next_step="Add --ncu NAME, or drop it.",
        )


def _stopwatch(device: torch.device) -> Stopwatch:
    from fuseproof.fastpaths.benchmarking import CudaStopwatch

    return CudaStopwatch(device)


def _printed(rows: Iterable[Row], head: Mapping[str, Any], speaks: bool, as_markdown: bool = False) -> list[Row]:
    """Every row, printed the moment it is there."""
    _say(markdown_head(head) if as_markdown else head_lines(head), not speaks)
    measured = []
    for row in rows:
        measured.append(row)
        if speaks:
            click.echo(markdown_line(*row) if as_markdown else line_of(*row))
    return measured


def _say(lines: Iterable[str], is_silent: bool) -> None:
    for line in () if is_silent else lines:
        click.echo(line)


def _wanted(
    model: str | None,
    sites: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    captured: str | None,
    fastpaths_from: str | None,
    seed: int,
) -> dict[str, Any]:
    """The same choice of calls, for a process of its own."""
    return {
        "model": model,
        "sites": list(sites),
        "shapes": [list(shape) for shape in shapes],
        "captured": captured,
        "fastpaths_from": fastpaths_from,
        "seed": seed,
    }
