"""What two arms took in timed runs, to hold against what their profiles predict. Never read from a profiled run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.analysis.campaign import CellAnalysis, analyse
from fuseproof.harness.analysis.runs import ARMS
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.perf.comparison import compare_dumps
from fuseproof.harness.perf.dump import PerfDump, read_perf_dump
from fuseproof.harness.perf.fields import Fields
from fuseproof.harness.perf.profiled_runs import ONE_TEXT, is_profiled
from fuseproof.harness.profiles.comparison import ProfileComparison
from fuseproof.harness.profiles.places import is_folder
from fuseproof.harness.profiles.profile import Profile
from fuseproof.harness.profiles.values import amounts, refusal, wholes
from fuseproof.harness.statistics.verdict import Word
from fuseproof.schedules.order import ArmLetter

NEXT_STEP = "Give a campaign, or the dumps of two timed runs, of the same request and the same arms as the profiles."
CONFIG_FIELDS = {
    "family": "family",
    "width": "width",
    "height": "height",
    "steps": "num_inference_steps",
    "guidance": "guidance_scale",
    "dtype": "dtype",
    "backend": "backend_used",
    "fastpaths": "fastpaths",
    "quality": "quality",
    "cuda_graph": "enable_breakable_cuda_graph",
    "compile": "enable_torch_compile",
}
"""Field of a profile's request → the flag that a dump records of it."""


@dataclass(frozen=True)
class Timings:
    """Means over the timed runs of both arms, in ms; ``denoise_ms`` is None where a run does not say."""

    label: str
    runs: tuple[int, int]
    worker_ms: tuple[float, float]
    denoise_ms: tuple[float, float] | None
    word: str | None
    """The campaign's verdict on the cell; None of two single runs, which have none."""

    @property
    def saved_ms(self) -> float:
        """Worker E2E that is gone."""
        return self.worker_ms[0] - self.worker_ms[1]

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "label": self.label,
            "runs": list(self.runs),
            "worker_ms": list(self.worker_ms),
            "denoise_ms": None if self.denoise_ms is None else list(self.denoise_ms),
            "word": self.word,
        }


def timings_of(fields: Fields) -> Timings:
    """What :meth:`Timings.to_json` wrote, checked."""
    runs, worker = wholes(fields, "runs"), amounts(fields, "worker_ms")
    denoise = None if fields.values.get("denoise_ms") is None else amounts(fields, "denoise_ms")
    for name, found in (("runs", runs), ("worker_ms", worker), ("denoise_ms", denoise)):
        if found is not None and (len(found) != 2 or not all(found)):
            raise refusal(fields, name, "must be two numbers above 0, before and after")
    pair = None if denoise is None else (denoise[0], denoise[1])
    return Timings(fields.text("label"), (runs[0], runs[1]), (worker[0], worker[1]), pair, fields.optional_text("word"))


def refuse_unreadable(paths: Sequence[Path]) -> None:
    """Raise for what can be no timed pair, whatever the profiles are: asked before anything is profiled."""
    if len(paths) == 1 and is_folder(paths[0]):
        Campaign.open(paths[0])
        return
    if len(paths) != 2:
        raise UsageError(
            f"--timings names {len(paths)} file(s), expected a campaign's folder, or two perf dumps: before and after.",
            next_step="Write --timings CAMPAIGN, or --timings BEFORE.json AFTER.json.",
        )
    for path in paths:
        dump = read_perf_dump(path)
        if is_profiled(dump):
            raise FuseproofError(f"{dump.path}: {ONE_TEXT}.", next_step=NEXT_STEP)


def read_timings(paths: Sequence[Path], comparison: ProfileComparison) -> Timings:
    """One campaign's folder, or the perf dumps of baseline and candidate.

    Raises :class:`FuseproofError` where they are of another request than the profiles, of swapped or other arms, of
    unequal work, or profiled themselves.
    """
    refuse_unreadable(paths)
    if len(paths) == 1:
        return _campaign(paths[0], comparison)
    dumps = [read_perf_dump(path) for path in paths]
    for dump, profile in zip(dumps, (comparison.before, comparison.after), strict=True):
        for problem in _problems(dump, profile):
            raise FuseproofError(f"{dump.path} is of no such run: {problem}.", next_step=NEXT_STEP)
    for check in compare_dumps(dumps).work:
        for difference in check.blocking:
            raise FuseproofError(f"the timed runs did unequal work: {difference}.", next_step=NEXT_STEP)
    return _means(f"{dumps[0].label} and {dumps[1].label}", [dumps[0]], [dumps[1]], None)


def _campaign(folder: Path, comparison: ProfileComparison) -> Timings:
    cells = analyse(Campaign.open(folder)).cells
    refused: dict[str, str] = {}
    fitting = []
    for cell in cells:
        problem = next(_cell_problems(cell, comparison), None)
        if problem is None:
            fitting.append(cell)
        else:
            refused[cell.name] = problem
    if len(fitting) != 1:
        told = "; ".join(f"{name}: {problem}" for name, problem in refused.items())
        found = f"{len(fitting)} cells fit" if fitting else f"no cell fits ({told})"
        raise FuseproofError(f"{folder} is no campaign of these two profiles: {found}.", next_step=NEXT_STEP)
    cell = fitting[0]
    before, after = (_dumps(cell, arm) for arm in ARMS)
    return _means(f"cell {cell.name} of {folder.name}", before, after, cell.word.value)


def _cell_problems(cell: CellAnalysis, comparison: ProfileComparison) -> Iterator[str]:
    if cell.word is Word.INVALID:
        yield "its times are INVALID"
    for arm, profile in zip(ARMS, (comparison.before, comparison.after), strict=True):
        dumps = _dumps(cell, arm)
        if not dumps:
            yield f"it has no run of arm {arm}"
        for dump in dumps:
            yield from _problems(dump, profile)


def _dumps(cell: CellAnalysis, arm: ArmLetter) -> list[PerfDump]:
    return [run.dump for run in cell.runs.of_arm(arm) if run.dump is not None]


def _problems(dump: PerfDump, profile: Profile) -> Iterator[str]:
    """Why a timed run is not the one that was profiled; what a dump does not record cannot be held against it."""
    if is_profiled(dump):
        yield ONE_TEXT
    for name, flag in CONFIG_FIELDS.items():
        own, timed = getattr(profile.request, name), dump.config.get(flag)
        if own is not None and timed is not None and own != timed:
            yield f"{flag} is {timed}, and {profile.source} has {name} {own}"
    frames = dump.config.get("num_frames")
    if profile.request.frames is not None and frames is not None and frames != profile.request.frames:
        yield f"num_frames is {frames}, and {profile.source} has {profile.request.frames}"
    card = _card(dump.environment)
    if profile.device.kind == "cuda" and card is not None and card != profile.device.name:
        yield f"it ran on {card}, and {profile.source} on {profile.device.name}"


def _card(environment: Mapping[str, Any]) -> str | None:
    name = environment.get("device_name")
    return name if isinstance(name, str) else None


def _means(label: str, before: Sequence[PerfDump], after: Sequence[PerfDump], word: str | None) -> Timings:
    worker = [math.fsum(dump.worker_ms for dump in dumps) / len(dumps) for dumps in (before, after)]
    denoise = [[dump.run_denoise_ms for dump in dumps] for dumps in (before, after)]
    known = [[value for value in values if value is not None] for values in denoise]
    has_all = all(len(values) == len(found) for values, found in zip(denoise, known, strict=True))
    means = (math.fsum(known[0]) / len(known[0]), math.fsum(known[1]) / len(known[1])) if has_all else None
    return Timings(label, (len(before), len(after)), (worker[0], worker[1]), means, word)
