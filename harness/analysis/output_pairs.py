"""Baseline and candidate outputs whose pixels differ, compared pair by pair: how far apart, and which pair is worst."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.analysis.recorded_pairs import recorded_comparison
from fuseproof.harness.analysis.runs import ARMS, CellRuns, Run
from fuseproof.harness.campaign.left_out import left_out_lines
from fuseproof.harness.media.comparing import Comparison, compare_files
from fuseproof.schedules.contracts import Contract

MOST_PAIRS = 16
"""Pairs compared per request when both arms are non-deterministic; the report says when there were more."""


@dataclass(frozen=True)
class ComparedPair:
    """One baseline output against one candidate output, as paths relative to the campaign folder.

    ``request`` counts from 0. ``comparison`` is None when a file could not be read, and ``error`` says why.
    """

    request: int
    prompt: str | None
    baseline: str
    candidate: str
    comparison: Comparison | None
    error: str | None
    violations: tuple[str, ...]

    @property
    def closeness(self) -> tuple[float, float]:
        """Sorts the worst first: unreadable and mismatched pairs, then by PSNR, then by SSIM."""
        if self.comparison is None or self.comparison.mismatch is not None:
            return (-1.0, -1.0)
        psnr, ssim = self.comparison.psnr_db, self.comparison.ssim
        return (float("inf") if psnr is None else psnr, float("inf") if ssim is None else ssim)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values, without the folder the files were read from."""
        comparison = None if self.comparison is None else self.comparison.to_json()
        if comparison is not None:
            comparison["a"]["path"], comparison["b"]["path"] = self.baseline, self.candidate
        return {
            "output": self.request + 1,
            "prompt": self.prompt,
            "baseline": self.baseline,
            "candidate": self.candidate,
            "error": self.error,
            "violations": list(self.violations),
            "comparison": comparison,
        }


def compare_pairs(cell: CellRuns, directory: Path, contract: Contract) -> tuple[tuple[ComparedPair, ...], int]:
    """Every distinct pair of baseline and candidate outputs with different pixels, worst first; how many were left out.

    ``directory`` is the campaign folder. A file that cannot be read makes a pair with an error; the others still count.
    """
    baseline, candidate = (cell.of_arm(arm) for arm in ARMS)
    return compare_runs(baseline, candidate, directory, contract)


def compare_runs(
    baseline: Sequence[Run], candidate: Sequence[Run], directory: Path, contract: Contract
) -> tuple[tuple[ComparedPair, ...], int]:
    """The same between any two lots of runs of one request, none of them empty.

    Of outputs that a packed folder lacks, the comparison is the one that its report recorded.
    """
    left_out = left_out_lines(directory)
    compared: list[ComparedPair] = []
    omitted = 0
    for request in range(min(len(run.record.outputs) for run in (*baseline, *candidate))):
        firsts, others = _distinct(baseline, request), _distinct(candidate, request)
        pairs = [(a, b) for key_a, a in firsts.items() for key_b, b in others.items() if key_a != key_b]
        omitted += max(0, len(pairs) - MOST_PAIRS)
        prompt = _prompt(baseline[0], request)
        compared += [_compare(request, prompt, a, b, directory, contract, left_out) for a, b in pairs[:MOST_PAIRS]]
    return tuple(sorted(compared, key=lambda pair: pair.closeness)), omitted


def _prompt(run: Run, request: int) -> str | None:
    prompts = run.dump.prompts if run.dump else ()
    return prompts[request] if request < len(prompts) else None


def _distinct(runs: Sequence[Run], request: int) -> dict[str, str]:
    """Pixel hash (or file hash) → the first path, relative to the campaign, that has it."""
    found: dict[str, str] = {}
    for run in runs:
        output = run.record.outputs[request]
        found.setdefault(output.pixels_sha256 or output.file_sha256, f"{run.record.directory}/{output.path}")
    return found


def _compare(
    request: int,
    prompt: str | None,
    baseline: str,
    candidate: str,
    directory: Path,
    contract: Contract,
    left_out: Collection[str],
) -> ComparedPair:
    try:
        recorded = recorded_comparison(directory, baseline, candidate) if {baseline, candidate} & {*left_out} else None
        comparison = recorded or compare_files(directory / baseline, directory / candidate)
    except FuseproofError as error:
        text = error.message.replace(f"{directory}/", "")
        return ComparedPair(request, prompt, baseline, candidate, None, text, (text,))
    return ComparedPair(request, prompt, baseline, candidate, comparison, None, tuple(contract.violations(comparison)))
