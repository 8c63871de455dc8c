"""The rows of ``fastpaths bench``: measured one after the other, once more where asked, as text and as JSON."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli.fastpaths_checks import Replay
from fuseproof.cli.fastpaths_rows import Remarks
from fuseproof.harness.escape import markdown_text

if TYPE_CHECKING:
    import torch

    from fuseproof.fastpaths.benchmarking import Measured, Stopwatch
    from fuseproof.fastpaths.tracing import SiteCall
    from fuseproof.fastpaths.user_sites import UserSites
    from fuseproof.fastpaths.verification import Case

Row = tuple[str, "Measured"]
"""A workload, and one call of it."""
Key = tuple[str, str, str, str]
CAPTURED = "captured"


class Bench:
    """Calls that are verified and then timed, in order; any of them again by its key."""

    def __init__(self, device: torch.device, seed: int, stopwatch: Stopwatch, own: UserSites | None) -> None:
        self._device, self._seed, self._stopwatch, self._own = device, seed, stopwatch, own
        self._cases: list[Case] = []
        self._replay: Replay | None = None
        self._places: dict[Key, int] = {}

    def take_calls(self, calls: Sequence[tuple[str, SiteCall]]) -> None:
        """Measure ``calls`` (each with its workload's name) with values of the seed."""
        from fuseproof.fastpaths.verification import Case, labelled

        self._cases = labelled(Case(call, workload, "random") for workload, call in calls)
        self._place_cases()

    def take_replay(self, replay: Replay) -> None:
        """Measure a captured call, on its own values."""
        self._replay = replay

    def rows(self) -> Iterator[Row]:
        """Each row the moment it is measured; bits first."""
        if self._replay is not None:
            yield self._replayed(self._replay)
            return
        remarks = Remarks("calls")
        click.echo(f"fuseproof: {len(self._cases)} calls on {self._device}", err=True)
        remarks.expect(len(self._cases))
        for case in self._cases:
            yield self._measured(case)
            remarks.one_done()

    def again(self, key: Key) -> Row:
        """The row of ``key`` once more, its bits too."""
        if self._replay is not None:
            return self._replayed(self._replay)
        return self._measured(self._cases[self._places[key]])

    def _place_cases(self) -> None:
        """Where the row of each key is, before any is measured."""
        self._places = {
            (case.call.site, case.call.layout.operation, case.workload, case.text or ""): place
            for place, case in enumerate(self._cases)
        }

    def entry(self, workload: str, one: Measured) -> dict[str, Any]:
        """The row as JSON."""
        return {
            "site": one.outcome.site,
            "kernel": one.outcome.operation,
            "workload": workload,
            "shapes": one.outcome.shapes,
            "bits": str(one.outcome.state),
            "reason": one.outcome.reason,
            "rotation": one.rotation,
            "traffic_bytes": one.traffic_bytes,
            "source_sha256": self._source(one.outcome.site, one.outcome.operation),
            "eager": _time(one.eager),
            "fused": _time(one.fused),
            "floor": _time(one.floor),
            "speedup": one.speedup,
            "times_floor": one.times_floor,
        }

    def _measured(self, case: Case) -> Row:
        from fuseproof.fastpaths.benchmarking import measure
        from fuseproof.fastpaths.check_values import filler
        from fuseproof.fastpaths.verification import check

        outcome = check(case, self._device, self._seed)

        def values(index: int) -> Any:
            return filler("random", self._seed + index, self._device)

        return case.workload, measure(case.call, outcome, self._device, values, self._stopwatch)

    def _replayed(self, replay: Replay) -> Row:
        from fuseproof.fastpaths.benchmarking import measure
        from fuseproof.fastpaths.verification import check_call

        call, filler, module = replay.call, replay.captured.filler, replay.module
        outcome = check_call(call, self._device, filler(), CAPTURED, CAPTURED, module, is_replay=True)
        return CAPTURED, measure(call, outcome, self._device, lambda _: filler(), self._stopwatch, module)

    def _source(self, site: str, kernel: str) -> str | None:
        """SHA-256 of what computes the fused form: the file of one's own, or the kernel's with all that it imports."""
        if self._own is not None and any(one.name == site for one in self._own.sites):
            return self._own.sha256
        return _kernel_hash(kernel.rpartition("+ ")[2].partition(",")[0])


@functools.cache
def _kernel_hash(kernel: str) -> str | None:
    from fuseproof.fastpaths.certificate_sources import ROOM, kernel_hash

    name = f"kernels/{kernel}.py"
    return kernel_hash(name) if (ROOM / name).is_file() else None


def head_of(device: torch.device, seed: int, selection: Mapping[str, Any]) -> dict[str, Any]:
    """The document without its rows: card, versions, method, and what was chosen."""
    from fuseproof.fastpaths.benchmarking import REPLAYS, ROUNDS
    from fuseproof.fastpaths.certificates import place_here
    from fuseproof.harness.kernel_times.record import SCHEMA

    place = place_here(device)
    return {
        "schema": SCHEMA,
        "card": {**place.card, **_driver_facts(device)},
        "versions": dict(place.versions),
        "seed": seed,
        "replays": REPLAYS,
        "rounds": ROUNDS,
        "selection": dict(selection),
    }


def selection_of(
    model: str | None,
    sites: Sequence[str],
    shapes: Sequence[Sequence[int]],
    captured: str | None,
    own: UserSites | None,
) -> dict[str, Any]:
    """What the user chose to measure; files by their SHA-256."""
    return {
        "model": model,
        "sites": sorted(sites),
        "shapes": ["x".join(map(str, shape)) for shape in shapes],
        "captured_sha256": None if captured is None else _sha256(Path(captured).expanduser()),
        "own_sha256": None if own is None else own.sha256,
    }


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _driver_facts(device: torch.device) -> dict[str, Any]:
    """Power limit (W) and driver of the card as nvidia-smi tells them, by its UUID."""
    import torch

    from fuseproof.harness.machine.gpus import survey_gpus

    unknown = {"power_limit_w": None, "driver": None}
    if device.type != "cuda":
        return unknown
    gpus = survey_gpus().gpus
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", "")).removeprefix("GPU-")
    same = [gpu for gpu in gpus if uuid and gpu.uuid is not None and gpu.uuid.removeprefix("GPU-") == uuid]
    if not same and len(gpus) == 1:
        same = [*gpus]
    return {"power_limit_w": same[0].power_limit_w, "driver": same[0].driver_version} if same else unknown


def head_lines(head: Mapping[str, Any]) -> Iterator[str]:
    """Card, versions and what stands in the columns: microseconds, medians (smallest-largest)."""
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items() if version)
    replays = f"{head['rounds']} rounds of {head['replays']} replays"
    yield f"{head['card']['name']}; {versions}; seed {head['seed']}; {replays}"
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


def markdown_head(head: Mapping[str, Any]) -> Iterator[str]:
    """As :func:`head_lines`, and a Markdown table's head: microseconds, medians [lowest, highest round]."""
    yield next(head_lines(head))
    yield ""
    yield "| kernel | workload | call | eager us | fused us | eager / fused | floor us | fused / floor |"
    yield "|---|---|---|--:|--:|--:|--:|--:|"


def markdown_line(workload: str, one: Measured) -> str:
    """One row of that table."""
    name = f"| {one.outcome.operation} | {workload} | {one.outcome.shapes} |"
    if one.fused is None:
        why = f"{one.outcome.state}: {markdown_text(one.outcome.reason)}"
        return f"{name} {why}; no time is given for other bits | | | | |"
    eager, fused, floor = (_round_spread(timing) for timing in (one.eager, one.fused, one.floor))
    return f"{name} {eager} | {fused} | {_ratio(one.speedup)} | {floor} | {_ratio(one.times_floor)} |"


def _round_spread(timing: Any) -> str:
    if timing is None:
        return "-"
    return f"{timing.median_us:.2f} [{min(timing.rounds_us):.2f}, {max(timing.rounds_us):.2f}]"


def _time(timing: Any) -> dict[str, Any] | None:
    return None if timing is None else asdict(timing) | {"rounds_us": list(timing.rounds_us)}


def _timing(timing: Any) -> str:
    return "-" if timing is None else f"{timing.median_us:.1f} ({timing.minimum_us:.1f}-{timing.maximum_us:.1f})"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
