"""``fuseproof fastpaths bench``: eager chain, fused form and traffic floor of each kernel, bits first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli import exit_codes
from fuseproof.cli.fastpaths_checks import calls_at, calls_of_models, card, check_names, load_own, names_of, replay_of
from fuseproof.cli.fastpaths_names import check_site_names
from fuseproof.cli.fastpaths_rows import Remarks
from fuseproof.cli.option_fields import WholeNumber
from fuseproof.cli.options import json_option
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    import torch

    from fuseproof.fastpaths.benchmarking import Measured
    from fuseproof.fastpaths.tracing import SiteCall
    from fuseproof.fastpaths.user_sites import UserSites

SCHEMA = "fuseproof.fastpaths-bench/1"
Row = tuple[str, "Measured"]
"""A workload, and one call of it."""
LARGEST_ELEMENTS = 1 << 32


class Shape(click.ParamType[tuple[int, int, int]]):
    """``BxSxD``: samples, rows of text and picture together, width."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int, int]:
        """Return the three numbers."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"([0-9]{1,4})x([0-9]{1,7})x([0-9]{1,6})", str(value))
        batch, rows, width = (int(number) for number in match.groups()) if match else (0, 0, 0)
        if batch < 1 or rows < 2 or width < 1 or batch * rows * width > LARGEST_ELEMENTS:
            self.fail(f"{str(value)!r} is no shape BxSxD with S of 2 or more, such as 1x4608x3072.", param, ctx)
        return batch, rows, width

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show the form."""
        return "BxSxD"


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
    help="Samples, rows and width in place of the model's; repeatable.",
)
@click.option("--from", "captured", metavar="FILE", help="Measure on the tensors that `capture` saved, nothing else.")
@click.option("--fastpaths-from", metavar="FILE", help="Python file with fast paths of your own, measured too.")
@click.option("--seed", type=WholeNumber(0, 2**63 - 1), default=0, show_default=True, help="Seed of the values.")
@json_option()
def bench(
    model: str | None,
    sites: tuple[str, ...],
    shapes: tuple[tuple[int, int, int], ...],
    captured: str | None,
    fastpaths_from: str | None,
    seed: int,
    as_json: bool,
) -> int:
    """Time every kernel on a card: the eager chain, the fused form, and a copy of as many bytes.

    Inputs rotate over more memory than the cache holds. Each kernel's bits are compared first; one that differs gets no
    time and no speed-up, and the exit code is 1. Medians of CUDA-graph replays, with the smallest and the largest. A
    row is printed as soon as it is measured; --model and --site narrow what is measured.
    """
    if captured is not None and (sites or shapes):
        raise UsageError("--from measures one captured call, so --site and --shape have no effect.")
    own = load_own(fastpaths_from)
    check_site_names(sites, own)
    device = card("bench")
    head = _head(device, seed)
    if captured is not None:
        rows = _replayed(captured, own, model, device)
    else:
        rows = _measured(_calls(model, shapes, own, device), sites, device, seed)
    measured = _printed(rows, head, not as_json)
    if as_json:
        click.echo(json.dumps(head | {"calls": [_entry(*row) for row in measured]}, indent=2, allow_nan=False))
    has_failed = any(one.outcome.state == "differs" for _, one in measured)
    return exit_codes.FAILED if has_failed else exit_codes.DONE


def _printed(rows: Iterable[Row], head: Mapping[str, Any], speaks: bool) -> list[Row]:
    """Every row, printed the moment it is there."""
    for line in head_lines(head) if speaks else ():
        click.echo(line)
    measured = []
    for row in rows:
        measured.append(row)
        if speaks:
            click.echo(line_of(*row))
    return measured


def _calls(
    model: str | None, shapes: Sequence[tuple[int, int, int]], own: UserSites | None, device: torch.device
) -> list[tuple[str, SiteCall]]:
    from fuseproof.pipelines.families import FAMILIES

    if not shapes:
        return calls_of_models((model,) if model else tuple(FAMILIES), own, device)
    name = model or next(iter(FAMILIES))
    return [("x".join(map(str, shape)), call) for shape in shapes for call in calls_at(shape, name, own)]


def _measured(
    calls: Sequence[tuple[str, SiteCall]], sites: Sequence[str], device: torch.device, seed: int
) -> Iterator[Row]:
    from fuseproof.fastpaths.benchmarking import CudaStopwatch, measure
    from fuseproof.fastpaths.check_values import filler
    from fuseproof.fastpaths.verification import Case, check, labelled

    check_names(sites, {name for _, call in calls for name in names_of(call)})

    def values(index: int) -> Any:
        return filler("random", seed + index, device)

    wanted = [(name, call) for name, call in calls if not sites or set(names_of(call)) & set(sites)]
    stopwatch, remarks = CudaStopwatch(device), Remarks("calls")
    click.echo(f"fuseproof: {len(wanted)} calls on {device}", err=True)
    remarks.expect(len(wanted))
    for case in labelled(Case(call, workload, "random") for workload, call in wanted):
        outcome = check(case, device, seed)
        yield case.workload, measure(case.call, outcome, device, values, stopwatch)
        remarks.one_done()


def _replayed(captured: str, own: UserSites | None, model: str | None, device: torch.device) -> Iterator[Row]:
    from fuseproof.fastpaths.benchmarking import CudaStopwatch, measure
    from fuseproof.fastpaths.verification import check_call

    replay = replay_of(captured, own, model)
    outcome = check_call(
        replay.call, device, replay.captured.filler(), "captured", "captured", replay.module, is_replay=True
    )
    stopwatch = CudaStopwatch(device)
    yield (
        "captured",
        measure(replay.call, outcome, device, lambda _: replay.captured.filler(), stopwatch, replay.module),
    )


def _head(device: torch.device, seed: int) -> dict[str, Any]:
    from fuseproof.fastpaths.benchmarking import REPLAYS
    from fuseproof.fastpaths.certificates import place_here

    place = place_here(device)
    return {
        "schema": SCHEMA,
        "card": dict(place.card),
        "versions": dict(place.versions),
        "seed": seed,
        "replays": REPLAYS,
    }


def _entry(workload: str, one: Measured) -> dict[str, Any]:
    return {
        "site": one.outcome.site,
        "kernel": one.outcome.operation,
        "workload": workload,
        "shapes": one.outcome.shapes,
        "bits": str(one.outcome.state),
        "reason": one.outcome.reason,
        "rotation": one.rotation,
        "traffic_bytes": one.traffic_bytes,
        "eager": asdict(one.eager) if one.eager else None,
        "fused": asdict(one.fused) if one.fused else None,
        "floor": asdict(one.floor) if one.floor else None,
        "speedup": one.speedup,
        "times_floor": one.times_floor,
    }


def head_lines(head: Mapping[str, Any]) -> Iterator[str]:
    """Card, versions and what stands in the columns: microseconds, medians (smallest-largest)."""
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items() if version)
    yield f"{head['card']['name']}; {versions}; seed {head['seed']}; {head['replays']} replays"
    times = "".join(f"{name + ' us':>24}" for name in ("eager", "fused", "floor"))
    yield f"{'kernel':<36}{'workload':<26}{times}{'eager/fused':>13}{'fused/floor':>13}  shapes"


def line_of(workload: str, one: Measured) -> str:
    """One row; no time stands beside other bits."""
    name = f"{one.outcome.operation:<36}{workload:<26}"
    if one.fused is None:
        why = f"{one.outcome.state}: {one.outcome.reason}; no time is given for other bits"
        return f"{name}{why}  {one.outcome.shapes}"
    times = "".join(f"{_timing(timing):>24}" for timing in (one.eager, one.fused, one.floor))
    return f"{name}{times}{_ratio(one.speedup):>13}{_ratio(one.times_floor):>13}  {one.outcome.shapes}"


def _timing(timing: Any) -> str:
    return "-" if timing is None else f"{timing.median_us:.1f} ({timing.minimum_us:.1f}-{timing.maximum_us:.1f})"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
